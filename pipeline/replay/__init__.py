"""A measured step run again by the simulator: what a profile's kernels take, and what a prefetch would change."""
