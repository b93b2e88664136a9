"""What kernels leave of the HBM bandwidth to a copy, over the time of a step."""

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
        self.times, at_start, at_end = _events(demand)
        self._curves = []
        ends: tuple[tuple[Literal["low", "nominal", "high"], np.ndarray], ...]
        ends = (("low", demand.high), ("nominal", demand.nominal), ("high", demand.low))
        for end, bytes_drawn in ends:
            values = machine.at(end)
            hbm = values.hbm_peak * values["hbm_share"]
            drawn = _rates(bytes_drawn, demand, at_start, at_end, len(self.times))
            left = np.clip(hbm - drawn, 0.0, values["cmo_bandwidth"])
            if end == "low":
                running = _rates(demand.link * (demand.end - demand.start), demand, at_start, at_end, len(self.times))
                left = np.where(running > 0.5, 0.0, left)
            self._curves.append(_integral(self.times, left))
        filled = _rates(demand.nominal, demand, at_start, at_end, len(self.times))
        self._filled = _integral(self.times, filled)
        busy = _rates(demand.end - demand.start, demand, at_start, at_end, len(self.times)) > 0.5
        self._busy = _integral(self.times, busy.astype(float))
        # The slowest engine also takes longest to begin.
        task = machine.unknowns["cmo_task"]
        self.task = Band(task.high, task.nominal, task.low)

    def fits(self, release: float, deadline: float) -> Band:
        """Bytes that one copy brings from the end of its dependency to the start of its target."""
        return Band(
            *(max(0.0, self._between(c, release + t, deadline)) for c, t in zip(self._curves, self.task, strict=True))
        )

    def arrival(self, begin: float, size: float) -> float:
        """When a copy that begins at a time has brought its bytes, nominal; infinite if not within the step."""
        curve = self._curves[1]
        wanted = float(np.interp(begin, self.times, curve)) + size
        if wanted > curve[-1]:
            return float("inf")
        return float(np.interp(wanted, curve, self.times)) if size > 0 else begin

    def brought(self, begin: float, deadline: float) -> float:
        """Bytes that a running copy brings between two times, nominal."""
        return max(0.0, self._between(self._curves[1], begin, deadline))

    def filled(self, begin: float, end: float) -> float:
        """Bytes that kernels bring into L2 between two times."""
        return max(0.0, self._between(self._filled, begin, end))

    def busy(self, begin: float, end: float) -> float:
        """Time between two times in which some kernel runs: the union of their intervals, us."""
        return max(0.0, self._between(self._busy, begin, end))

    def _between(self, curve: np.ndarray, begin: float, end: float) -> float:
        if end <= begin:
            return 0.0
        return float(np.interp(end, self.times, curve) - np.interp(begin, self.times, curve))


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


def _integral(times: np.ndarray, rates: np.ndarray) -> np.ndarray:
    return np.concatenate(([0.0], np.cumsum(rates * np.diff(times))))
