"""Every causal language model of the installed transformers, one row each: what of the two levers' way works on it."""
