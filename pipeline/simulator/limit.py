"""The physical limit: what no plan can beat."""

from models.workload import Workload
from pipeline.simulator.machine import Machine


def physical_limit(workload: Workload, machine: Machine) -> float:
    """Time to read all bytes of the step once at the peak of HBM, nothing else: us.

    A weight that several kernels read counts once; expert stacks count their nominal share. A step on a warm L2 can be
    faster by what is left of the step before, at most the size of L2.
    """
    return required_bytes(workload) / machine.hbm_peak


def required_bytes(workload: Workload) -> float:
    """Bytes that have to come from HBM in one step on a cold L2."""
    weights: dict[str, float] = {}
    other = 0.0
    for kernel in workload.kernels:
        if kernel.fixed_us is not None:
            continue
        other += kernel.other_bytes
        for read in kernel.weights:
            weights[read.weight] = max(weights.get(read.weight, 0.0), read.stored_bytes * read.share)
    return other + sum(weights.values())
