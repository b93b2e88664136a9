"""From the kernels of a profile to a roofline, prefetch windows, candidates and scopes."""
