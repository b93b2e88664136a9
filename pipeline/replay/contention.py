"""Measured times hold the competition of the streams for HBM; the simulator makes kernels compete once more.

So the time that a kernel would take alone is looked for: the one with which the simulated step, streams and all, shows
the measured time. Found by fixed point: each round scales it by measured over simulated.
"""

from dataclasses import dataclass, replace

import numpy as np

from models.workload import Kernel, Workload
from pipeline.simulator.machine import Machine
from pipeline.simulator.pack import pack_parameters
from pipeline.simulator.simulate import packed_workload, run

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
    packed = packed_workload(workload)
    rows, fixed = pack_parameters(packed, [machine.nominal()])
    best, best_off, alone = measured, np.inf, measured
    for _ in range(ROUNDS):
        times = packed.arrays.measured.copy()
        times[chosen] = alone
        step = run(workload, replace(packed, arrays=packed.arrays._replace(measured=times)), [], rows[0], fixed[0])
        seen = np.array(step.durations())[chosen]
        off = float(np.abs(seen - measured).sum() / measured.sum())
        if off < best_off:
            best, best_off = alone, off
        if off < CLOSE:
            break
        alone = np.minimum(alone * measured / np.maximum(seen, 1e-9), measured)
    kernels: list[Kernel] = list(workload.kernels)
    for k, us in zip(chosen, best.tolist(), strict=True):
        kernels[k] = replace(kernels[k], measured_us=us)
    return Settled(replace(workload, kernels=tuple(kernels)), best_off, float((measured - best).sum()))
