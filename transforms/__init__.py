"""Transforms: the plan, the registry and the registered realisations of a plan. May import `models`."""
