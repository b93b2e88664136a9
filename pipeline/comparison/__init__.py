"""Two measured profiles against each other: kernels paired, times compared over steps, the checklist answered."""
