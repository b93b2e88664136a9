"""One step as arrays: what each kernel is, when it runs, what it waits for, where in the layers it stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.analysis.bandwidth import Demand
from pipeline.analysis.layers import Places, find_places
from pipeline.analysis.operators import Kind, OperatorTable

if TYPE_CHECKING:
    import polars as pl

    from pipeline.simulator.machine import Machine

# Two kernels that touch may overlap by what rounding to nanoseconds leaves.
_TOUCH = 0.05


@dataclass(frozen=True, eq=False)
class Sequence:
    """The kernels of the median step in order of their starts.

    Attributes:
        frame: the classified kernels, one row each.
        kinds: per kernel.
        start, end: us from the start of the representative step.
        stream: number of the stream.
        before: the kernel that each follows on its critical path: the one before it on its stream, or the kernel of
            another stream that it waited for; -1 if none.
        places: layers.
        heavy: kernels that take the HBM bandwidth for themselves.
        names: of the streams.
    """

    frame: "pl.DataFrame"
    kinds: tuple[Kind, ...]
    start: np.ndarray
    end: np.ndarray
    stream: np.ndarray
    before: np.ndarray
    places: Places
    heavy: np.ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def length(self) -> np.ndarray:
        """Time of each kernel, us: median over the steps."""
        return self.column("duration_us")

    @cached_property
    def ops(self) -> list[str]:
        """Operator type of each kernel."""
        return [op or "" for op in self.frame["op_type"].to_list()]

    def column(self, name: str) -> np.ndarray:
        """A column of numbers, 0 where there is none."""
        import polars as pl

        return self.frame[name].cast(pl.Float64).fill_null(0.0).to_numpy().copy()

    def demand(self, machine: "Machine", less: Mapping[int, float] | None = None) -> Demand:
        """What the kernels draw from HBM.

        Where bytes are not known, the load pipe tells the most that they can be (it may read from L2); without ratios
        a kernel may draw everything.

        Args:
            machine: for its peak.
            less: kernel -> bytes of its weights that a prefetch brings before.
        """
        length = self.end - self.start
        most = length * machine.hbm_peak
        known = self.frame["known"].to_numpy()
        pipe = np.clip(self.column("mte2_ratio"), 0, 1) * self.column("aicore_us")
        pipe = np.maximum(pipe, np.clip(self.column("aiv_mte2_ratio"), 0, 1) * self.column("aiv_us"))
        seen = self.frame["busiest"].is_not_null().to_numpy()
        guess = np.where(seen, np.minimum(pipe * machine.hbm_peak, most), most)
        link = np.array([k.name == "communication" for k in self.kinds])
        # A collective, and what sends tokens to experts, reads and writes what goes over the link.
        sends = link | np.array([k.name == "dispatch_combine" for k in self.kinds])
        guess = np.where(sends, 2 * length * machine.nominal()["link_bandwidth"], guess)
        low, mid, high = (np.where(known, self.column(f"bytes{end}"), guess) for end in ("_low", "", "_high"))
        low = np.where(known, low, 0.0)
        saved = np.zeros(len(self))
        for kernel, size in (less or {}).items():
            saved[kernel] = size
        low, mid, high = (np.minimum(np.maximum(b - saved, 0.0), most) for b in (low, mid, high))
        return Demand(self.start, self.end, low, mid, high, link.astype(float))


def sequence(classified: "pl.DataFrame", operators: OperatorTable) -> Sequence:
    """Build the arrays.

    Args:
        classified: kernels of one step with start, duration, roofline columns and `stream`, by start.
        operators: the table and its limits.
    """
    import polars as pl

    limits = operators.limits
    kinds = tuple(operators.kinds[name] for name in classified["kind"])
    start = classified["start_us"].to_numpy().copy()
    end = start + classified["own_us"].to_numpy()
    words = classified["stream"].fill_null("").to_list()
    names = tuple(dict.fromkeys(words))
    stream = np.array([names.index(w) for w in words], dtype=np.int64)
    before, _ = critical_path(start, end, stream, limits.waits)
    idents = classified["ident"].cast(pl.Int64).to_numpy()
    return Sequence(
        classified,
        kinds,
        start,
        end,
        stream,
        before,
        find_places(stream, idents),
        _heavy(classified, kinds, limits),
        names,
    )


def critical_path(
    start: np.ndarray, end: np.ndarray, stream: np.ndarray, waits: float
) -> tuple[np.ndarray, np.ndarray]:
    """Per kernel what it follows on its critical path, and the one before it on its stream; -1 if none.

    Args:
        start, end: us, in order of start.
        stream: numbers.
        waits: us of idle time from which on a kernel waited for one of another stream.
    """
    n = len(start)
    previous = np.full(n, -1)
    for lane in np.unique(stream):
        mine = np.flatnonzero(stream == lane)
        previous[mine[1:]] = mine[:-1]
    before = previous.copy()
    by_end = np.argsort(end, kind="stable")
    sorted_ends = end[by_end]
    idle = np.where(previous >= 0, start - end[previous], np.inf)
    for index in np.flatnonzero(idle > waits):
        last = int(np.searchsorted(sorted_ends, start[index] + _TOUCH, side="right")) - 1
        while last >= 0 and by_end[last] >= index:
            last -= 1
        if last >= 0 and stream[by_end[last]] != stream[index] and start[index] - sorted_ends[last] <= waits:
            before[index] = by_end[last]
    return before, previous


def _heavy(frame: "pl.DataFrame", kinds: tuple[Kind, ...], limits: Any) -> np.ndarray:
    """Kernels that leave no bandwidth while they run, by the rule of their kind."""
    import polars as pl

    memory = (frame["class"] == "memory").to_numpy()
    moved = frame["bytes"].cast(pl.Float64).fill_null(float("inf")).to_numpy()
    found = np.zeros(len(kinds), dtype=bool)
    for index, kind in enumerate(kinds):
        if kind.intensive == "memory_bound":
            found[index] = memory[index] and moved[index] >= limits.small_weight
        elif kind.intensive == "large_move":
            found[index] = memory[index] and limits.large_move <= moved[index] < float("inf")
    return found
