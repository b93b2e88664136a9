"""The pipeline: recipes, plans, verification, the simulator, trials, reports. May import `transforms` and `models`."""
