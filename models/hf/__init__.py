"""Any causal language model of the installed transformers, as a model of ours."""
