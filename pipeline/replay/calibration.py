"""What a profile says about the machine: the gap between kernels, and the HBM bandwidth that big weights reach.

Only these two follow from a baseline profile. The copy engine, late bytes and partly resident weights do not show in
it: they keep the bands of the hardware's configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from pipeline.figures import Figure
from pipeline.mapping.step import Step
from pipeline.simulator.machine import Machine, Unknown

_FEW = 20  # samples below which a quantile says little
_FEW_SIZES = 3  # different weights that a line needs
_GAP_LIMIT = 5.0  # us; longer is a wait
_SPREAD = 2.0  # largest over smallest weight that a slope needs
_CONFIDENCE = 0.8  # of the band of a slope, as of all bands


@dataclass(frozen=True)
class Calibrated:
    """One quantity that the profile gives.

    Attributes:
        name: unknown of the machine model, or `fixed time of MatMul kernels`.
        figure: measured, with its band.
        samples: kernels it comes from.
        used: whether the replay takes it in place of the configured one.
        note: why not, or what to mind.
    """

    name: str
    figure: Figure
    samples: int
    used: bool
    note: str = ""


def calibrate(step: Step, machine: Machine) -> tuple[Machine, tuple[Calibrated, ...]]:
    """The machine with what the profile measured of it.

    Args:
        step: median step of a profile without prefetch.
        machine: as configured.
    """
    found = [c for c in (_gap(step), *_bandwidth(step, machine)) if c is not None]
    unknowns: Mapping[str, Unknown] = {
        **machine.unknowns,
        **{c.name: _unknown(c, machine.unknowns[c.name]) for c in found if c.used},
    }
    return replace(machine, unknowns=unknowns), tuple(found)


def _unknown(found: Calibrated, configured: Unknown) -> Unknown:
    figure = found.figure
    low, high = figure.low, figure.high
    return replace(
        configured,
        low=figure.value if low is None else low,
        nominal=figure.value,
        high=figure.value if high is None else high,
        source=f"measured: {found.samples} kernels of the profile",
    )


def _gap(step: Step) -> Calibrated | None:
    """Time between a kernel and the one before it on its stream, where it waited for nothing else."""
    last: dict[int, int] = {}
    gaps = []
    for at in range(len(step)):
        stream = int(step.streams[at])
        previous = last.get(stream)
        last[stream] = at
        if previous is not None and previous == step.before[at]:
            gaps.append(step.start_us[at] - step.end_us[previous])
    short = np.array([g for g in gaps if 0.0 <= g < _GAP_LIMIT])
    if len(short) < _FEW:
        return None
    low, middle, high = (float(q) for q in np.quantile(short, (0.1, 0.5, 0.9)))
    return Calibrated("gap", Figure(middle, "us", low, high, "measured"), len(short), True)


def _bandwidth(step: Step, machine: Machine) -> list[Calibrated]:
    """Time of MatMul kernels over the bytes they read: the slope is the bandwidth, the intercept the fixed time."""
    exact = (step.read_bytes[:, 0] == step.read_bytes[:, 2]) & (step.weight_bytes > 0)
    cube = np.array([kind.engine == "cube" for kind in step.kinds], bool) & exact
    peak = machine.nominal()
    compute = np.array([peak[f"peak_{name}"] for name in step.compute])
    moved = step.weight_bytes + step.other_bytes
    # Only kernels that could draw all of HBM: on enough cores, and with no other kernel beside them.
    enough = (step.cores == 0) | (step.cores * peak["core_bandwidth"] >= machine.hbm_peak)
    memory = cube & (step.flops / compute < moved / machine.hbm_peak) & enough & _alone(step)
    sizes, us = moved[memory], step.duration_us[memory]
    if (
        len(sizes) < _FEW
        or len(np.unique(step.weight_bytes[memory])) < _FEW_SIZES
        or sizes.max() < _SPREAD * sizes.min()
    ):
        return []
    # Equal kernels of many layers count as one size with its median, so that one big layer does not decide.
    distinct = np.unique(sizes)
    times = np.array([np.median(us[sizes == size]) for size in distinct])
    slope, fixed, low, high = theil_sen(times, distinct, _CONFIDENCE)
    count = int(memory.sum())
    if slope <= 0:
        return []
    share, slow, fast = (1.0 / s / machine.hbm_peak if s > 0 else np.inf for s in (slope, high, low))
    usable = 0.2 <= share <= 1.0
    why = "faster than HBM: weights came from L2" if share > 1 else "far below the peak: not a plain read"
    figure = Figure(float(share), "share", float(min(share, slow)), float(min(max(share, fast), 1.0)), "measured")
    left = Figure(float(fixed), "us", None, None, "measured")
    return [
        Calibrated("hbm_share", figure, count, bool(usable), "" if usable else why),
        Calibrated("fixed time of MatMul kernels", left, count, False, "part of every measured time"),
    ]


def theil_sen(y: np.ndarray, x: np.ndarray, confidence: float) -> tuple[float, float, float, float]:
    """Median of the slopes of all pairs, intercept, and the interval of the slope (Sen 1968).

    `scipy.stats.theilslopes` gives the same; importing it takes longer than everything else here.

    Args:
        y: [n] values.
        x: [n] distinct places.
        confidence: of the interval, 0.5 .. 1.
    """
    n = len(x)
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    slope = float(np.median(slopes))
    ties = np.unique(y, return_counts=True)[1]
    spread = (n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18.0
    reach = NormalDist().inv_cdf((1.0 + confidence) / 2.0) * float(np.sqrt(spread))
    low = max(round((len(slopes) - reach) / 2.0) - 1, 0)
    high = min(round((len(slopes) + reach) / 2.0), len(slopes) - 1)
    return slope, float(np.median(y) - slope * np.median(x)), float(slopes[low]), float(slopes[high])


def _alone(step: Step) -> np.ndarray:
    """Kernels beside which none of another stream runs."""
    alone = np.ones(len(step), bool)
    for stream in np.unique(step.streams):
        others = step.streams != stream
        starts, ends = np.sort(step.start_us[others]), np.sort(step.end_us[others])
        mine = ~others
        begun = np.searchsorted(starts, step.end_us[mine], "left")
        alone[mine] = begun == np.searchsorted(ends, step.start_us[mine], "right")
    return alone
