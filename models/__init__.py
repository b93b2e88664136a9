"""Models: loading, structure, sharding and sizes, tracing. Imports neither `transforms` nor `pipeline`."""
