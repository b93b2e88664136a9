"""SuperKernel from a profile: chains of kernels whose launches cost much, per stream and layer. Modelled.

In a static graph the gaps between kernels are about 0.1 us: what a SuperKernel saves is the launch part inside the
durations of the kernels after the first, and the gaps themselves.
"""

from typing import TYPE_CHECKING

import numpy as np

from pipeline.analysis.operators import Limits, plain_name
from pipeline.analysis.places import Place, at, kernel_ref
from pipeline.analysis.results import Chain
from pipeline.analysis.sequence import Sequence
from pipeline.figures import Figure
from pipeline.fusable import UNFUSABLE

if TYPE_CHECKING:
    from pipeline.simulator.machine import Machine

_DRAWS = 64
_BAND = (0.10, 0.90)
_FUSES = {plain_name(op): entry.fuses for entry in UNFUSABLE for op in entry.ops}


def find_chains(step: Sequence, machine: "Machine", limits: Limits, step_us: float) -> tuple[Chain, ...]:
    """All chains of two kernels and more, those that save most per step first.

    Args:
        step: the kernels.
        machine: its unknowns `launch`, `fused_gap` and `fusion`.
        limits: thresholds.
        step_us: time of the step.
    """
    groups: dict[tuple[Place, Place], list[list[int]]] = {}
    for run in _runs(step, limits):
        groups.setdefault((at(step, run[0]), at(step, run[-1])), []).append(run)
    fixed, gap = _fixed_part(step), _gaps(step, limits)
    draws = [machine.nominal(), *machine.draws(_DRAWS)]
    launch, fused_gap, fusion = (np.array([[d[name]] for d in draws]) for name in ("launch", "fused_gap", "fusion"))
    always = np.array([_FUSES.get(plain_name(op), "always") == "always" for op in step.ops])
    rows, classes = step.frame["row"].to_list(), step.frame["class"].to_list()
    found = []
    for runs in groups.values():
        middle = runs[len(runs) // 2]
        after = np.array([r[1:] for r in runs])
        times = [float(step.end[r[-1]] - step.start[r[0]]) for r in runs]
        rest, between = np.median(fixed[after], axis=0), np.median(gap[after], axis=0)
        each = np.minimum(launch, rest) + np.maximum(0.0, between - fused_gap)
        # A kernel joins the one before it if both fuse; some do only in some versions.
        joins = (always[middle[1:]] & always[middle[:-1]]) | (fusion > 0.5)
        saved = (each * joins).sum(axis=1).tolist()
        low, high = np.quantile(saved[1:], _BAND)
        time = float(np.median(times))
        share = saved[0] * len(runs) / step_us if step_us else 0.0
        found.append(
            Chain(
                first=kernel_ref(step, middle[0]),
                last=kernel_ref(step, middle[-1]),
                ops=tuple(step.ops[k] for k in middle),
                calls=len(runs),
                kernels=len(middle),
                launch_bound=sum(classes[k] == "launch" for k in middle),
                time_us=time,
                saving=Figure(saved[0], "us", min(saved[0], float(low)), max(saved[0], float(high))),
                step_share=share,
                worth=saved[0] >= limits.scope_share * time,
                rows=tuple((rows[r[0]], rows[r[-1]]) for r in runs),
            )
        )
    return tuple(sorted(found, key=lambda c: -c.step_share))


def _runs(step: Sequence, limits: Limits) -> list[list[int]]:
    """Kernels in a row on one stream that one SuperKernel could hold: cut at layers, waits, and what does not fuse."""
    runs: list[list[int]] = []
    classes, cores = step.frame["class"].to_list(), step.frame["core"].to_list()
    for lane in np.unique(step.stream):
        run: list[int] = []
        for kernel in np.flatnonzero(step.stream == lane).tolist():
            fuses = _FUSES.get(plain_name(step.ops[kernel]), "always") != "never"
            if classes[kernel] == "communication" or cores[kernel] in ("AI_CPU", "DSA_SQE") or not fuses:
                runs.append(run)
                run = []
                continue
            if run and (
                _layer(step, kernel) != _layer(step, run[-1]) or _idle(step, run[-1], kernel) > limits.scope_idle
            ):
                runs.append(run)
                run = []
            run.append(kernel)
        runs.append(run)
    return [run for run in runs if len(run) > 1]


def _layer(step: Sequence, kernel: int) -> tuple[int, int]:
    return int(step.places.block[kernel]), int(step.places.layer[kernel])


def _idle(step: Sequence, before: int, kernel: int) -> float:
    return float(step.start[kernel] - step.end[before])


def _fixed_part(step: Sequence) -> np.ndarray:
    """Time of each kernel that neither its bytes nor its FLOPs need: a launch is at most that."""
    ideal = np.maximum(step.column("memory_us"), step.column("compute_us"))
    return np.maximum(0.0, step.length - ideal)


def _gaps(step: Sequence, limits: Limits) -> np.ndarray:
    """Idle time before each kernel on its stream; a wait for something else is none that fusing saves."""
    found = np.zeros(len(step))
    for lane in np.unique(step.stream):
        mine = np.flatnonzero(step.stream == lane)
        found[mine[1:]] = step.start[mine[1:]] - step.end[mine[:-1]]
    return np.where((found > 0) & (found <= limits.waits), found, 0.0)
