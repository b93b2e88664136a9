"""Mutated input files: whatever is in them, our readers give rows or a refusal, never a traceback."""
