"""What kernels leave of the HBM bandwidth to a copy, over the time of a step."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pipeline.simulator.machine import Machine


class Band(NamedTuple):
    """A modelled quantity with its band."""

    low: float
    nominal: float
    high: float


@dataclass(frozen=True)
class Demand:
    """What the kernels of a step ask of HBM.

    Attributes:
        start, end: per kernel, us from the start of the step.
        low, nominal, high: bytes each draws (fewest .. most).
        link: kernels that communicate; the low case leaves a copy nothing beside them.
    """

    start: np.ndarray
    end: np.ndarray
    low: np.ndarray
    nominal: np.ndarray
    high: np.ndarray
    link: np.ndarray


class Leftover:
    """Bytes that a copy can bring between two times, beside the kernels of all streams.

    Modelled: the copy engine runs at `cmo_bandwidth`, and at no more than what the kernels leave of HBM, so that it
    slows none of them. Its low case has the slowest engine, the least HBM bandwidth, the hungriest kernels.
    """

    def __init__(self, demand: Demand, machine: "Machine") -> None:
        times, at_start, at_end = _events(demand)
        self._times: list[float] = times.tolist()
        self._curves: list[list[float]] = []
        ends: tuple[tuple[Literal["low", "nominal", "high"], np.ndarray], ...]
        ends = (("low", demand.high), ("nominal", demand.nominal), ("high", demand.low))
        for end, bytes_drawn in ends:
            values = machine.at(end)
            hbm = values.hbm_peak * values["hbm_share"]
            drawn = _rates(bytes_drawn, demand, at_start, at_end, len(times))
            left = np.clip(hbm - drawn, 0.0, values["cmo_bandwidth"])
            if end == "low":
                running = _rates(demand.link * (demand.end - demand.start), demand, at_start, at_end, len(times))
                left = np.where(running > 0.5, 0.0, left)
            self._curves.append(_integral(times, left))
        filled = _rates(demand.nominal, demand, at_start, at_end, len(times))
        self._filled = _integral(times, filled)
        busy = _rates(demand.end - demand.start, demand, at_start, at_end, len(times)) > 0.5
        self._busy = _integral(times, busy.astype(float))
        # The slowest engine also takes longest to begin.
        task, engine = machine.unknowns["cmo_task"], machine.unknowns["cmo_bandwidth"]
        self.task = Band(task.high, task.nominal, task.low)
        self.engine = Band(engine.low, engine.nominal, engine.high)

    def fits(self, release: float, deadline: float) -> Band:
        """Bytes that one copy brings from the end of its dependency to the start of its target."""
        return Band(
            *(max(0.0, self._gained(c, release + t, deadline)) for c, t in zip(self._curves, self.task, strict=True))
        )

    def arrival(self, begin: float, size: float) -> float:
        """When a copy that begins at a time has brought its bytes, nominal; infinite if not within the step."""
        curve = self._curves[1]
        wanted = self._at(curve, begin) + size
        if wanted > curve[-1]:
            return float("inf")
        return _between(curve, self._times, wanted) if size > 0 else begin

    def brought(self, begin: float, deadline: float) -> float:
        """Bytes that a running copy brings between two times, nominal."""
        return max(0.0, self._gained(self._curves[1], begin, deadline))

    def filled(self, begin: float, end: float) -> float:
        """Bytes that kernels bring into L2 between two times."""
        return max(0.0, self._gained(self._filled, begin, end))

    def busy(self, begin: float, end: float) -> float:
        """Time between two times in which some kernel runs: the union of their intervals, us."""
        return max(0.0, self._gained(self._busy, begin, end))

    def _gained(self, curve: Sequence[float], begin: float, end: float) -> float:
        return self._at(curve, end) - self._at(curve, begin) if end > begin else 0.0

    def _at(self, curve: Sequence[float], time: float) -> float:
        return _between(self._times, curve, time)


def _between(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Linear interpolation; a bisection in a list takes a tenth of numpy's time for a single value."""
    at = bisect_right(xs, x)
    if at == 0 or at == len(xs):
        return ys[0 if at == 0 else -1]
    left, right = xs[at - 1], xs[at]
    return ys[at - 1] + (ys[at] - ys[at - 1]) * (x - left) / (right - left)


def _events(demand: Demand) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All times at which a kernel starts or ends, and the places of the starts and the ends among them."""
    times = np.unique(np.concatenate(([0.0], demand.start, demand.end)))
    return times, np.searchsorted(times, demand.start), np.searchsorted(times, demand.end)


def _rates(amount: np.ndarray, demand: Demand, at_start: np.ndarray, at_end: np.ndarray, n: int) -> np.ndarray:
    """Sum over the running kernels of what each does per us, in every interval between two events."""
    length = demand.end - demand.start
    rate = np.divide(amount, length, out=np.zeros_like(length), where=length > 0)
    change = np.zeros(n)
    np.add.at(change, at_start, rate)
    np.add.at(change, at_end, -rate)
    # Differences of large sums leave residues: nothing runs where less than a byte a second does.
    sums = np.cumsum(change)[:-1]
    return np.where(np.abs(sums) < 1e-6, 0.0, sums)


def _integral(times: np.ndarray, rates: np.ndarray) -> list[float]:
    found: list[float] = np.concatenate(([0.0], np.cumsum(rates * np.diff(times)))).tolist()
    return found
