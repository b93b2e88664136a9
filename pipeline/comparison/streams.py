"""The streams of both steps: when each ends, and for how long it runs kernels (union of intervals)."""

import numpy as np

from pipeline.comparison.changes import Change, StreamChange, change
from pipeline.comparison.pairing import Pairs
from pipeline.comparison.shift import level
from pipeline.comparison.side import Side
from pipeline.signals import TAIL_OF_STEP


def stream_changes(before: Side, after: Side, pairs: Pairs) -> list[StreamChange]:
    """Every stream of the baseline with the one that it is in the optimised step, then those that are new."""
    names, others = before.sequence.names, after.sequence.names
    every: list[tuple[str, int | None, int | None]] = []
    for stream, name in enumerate(names):
        other = pairs.streams.get(stream)
        same = other is None or others[other] == name
        every.append((name or "-" if same else f"{name} / {others[other or 0]}", stream, other))
    every += [(name or "-", None, k) for k, name in enumerate(others) if k not in pairs.streams.values()]
    busiest = int(np.argmax([_kernel_time(before, s) for s in range(len(names))]))
    main = _later(before, after, busiest, pairs.streams.get(busiest))
    allowed = float(np.median(before.step)) * TAIL_OF_STEP / 100
    found = []
    for label, mine, theirs in every:
        more = _later(before, after, mine, theirs)
        # That the main stream takes longer is the critical path's point, and that the others wait for it is no tail.
        late = mine != busiest and more is not None and _is_late(more, main, allowed)
        found.append(_stream(label, before, after, mine, theirs, late))
    return found


def _kernel_time(side: Side, stream: int) -> float:
    return float(side.sequence.length[side.sequence.stream == stream].sum())


def _later(before: Side, after: Side, stream: int | None, other: int | None) -> Change | None:
    """The end of a stream in both steps; of one that the baseline does not have, against the end of its step."""
    if other is None:
        return None
    first = before.step if stream is None else before.end[:, before.sequence.stream == stream].max(axis=1)
    return change("end", first, after.end[:, after.sequence.stream == other].max(axis=1), 0)


def _is_late(more: Change, main: Change | None, allowed: float) -> bool:
    beside = max(0.0, main.delta_us) if main is not None else 0.0
    by_chance = more.faster is not None and more.faster.high is not None and more.faster.high >= 0
    return more.delta_us - beside > allowed and not by_chance


def _stream(label: str, before: Side, after: Side, stream: int | None, other: int | None, late: bool) -> StreamChange:
    mine, theirs = (
        None if number is None else np.flatnonzero(side.sequence.stream == number)
        for side, number in ((before, stream), (after, other))
    )
    sides = ((before, mine), (after, theirs))
    calls = len(mine if mine is not None else theirs if theirs is not None else ())

    def both(name: str, times: list[np.ndarray | None]) -> Change:
        first, then = times
        if first is not None and then is not None:
            return change(name, first, then, calls)
        had, has = (None if t is None else level(t) for t in times)
        return Change(name, calls, had, has, None, (has.value if has else 0.0) - (had.value if had else 0.0))

    busy = [None if k is None else side.busy(k) for side, k in sides]
    idle = [None if b is None else side.step - b for (side, _), b in zip(sides, busy, strict=True)]
    ends = [None if k is None else side.end[:, k].max(axis=1) for side, k in sides]
    return StreamChange(label, both("busy", busy), both("idle", idle), both("end", ends), late)
