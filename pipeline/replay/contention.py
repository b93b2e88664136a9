"""Measured times hold the competition of the streams for HBM; the simulator makes kernels compete once more.

So the time that a kernel would take alone is looked for: the one with which the simulated step, streams and all, shows
the measured time. Found by fixed point: each round scales it by measured over simulated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.workload import Kernel, Workload
from pipeline.simulator.machine import Machine
from pipeline.simulator.simulate import simulate

ROUNDS = 12
CLOSE = 0.002  # share of the measured times in sum


@dataclass(frozen=True)
class Settled:
    """A workload whose kernels show the measured times when they run together.

    Attributes:
        workload: with times alone on the device, us.
        off: difference that is left, as a share of the measured times in sum.
        shared_us: time that the kernels lose to each other in sum: measured less alone.
    """

    workload: Workload
    off: float
    shared_us: float


def without_contention(workload: Workload, machine: Machine) -> Settled:
    """Find the times alone, at nominal values of all unknowns.

    Args:
        workload: kernels with measured times.
        machine: the device.
    """
    chosen = [k.index for k in workload.kernels if k.measured_us]
    measured = np.array([workload.kernels[k].measured_us for k in chosen], float)
    if not len(chosen) or len({k.stream for k in workload.kernels}) == 1:
        return Settled(workload, 0.0, 0.0)
    parameters = machine.nominal()
    best, best_off, alone = measured, np.inf, measured
    for _ in range(ROUNDS):
        step = simulate(_with(workload, chosen, alone), [], parameters)
        seen = np.array(step.durations())[chosen]
        off = float(np.abs(seen - measured).sum() / measured.sum())
        if off < best_off:
            best, best_off = alone, off
        if off < CLOSE:
            break
        alone = np.minimum(alone * measured / np.maximum(seen, 1e-9), measured)
    return Settled(_with(workload, chosen, best), best_off, float((measured - best).sum()))


def _with(workload: Workload, chosen: Sequence[int], alone: np.ndarray) -> Workload:
    kernels: list[Kernel] = list(workload.kernels)
    for k, us in zip(chosen, alone.tolist(), strict=True):
        kernels[k] = replace(kernels[k], measured_us=us)
    return replace(workload, kernels=tuple(kernels))
