"""Where the kernels of a profile belong in the model."""
