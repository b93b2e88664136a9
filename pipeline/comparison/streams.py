"""The streams of both steps: when each ends, and for how long it runs kernels (union of intervals)."""

import numpy as np

from pipeline.comparison.changes import Change, StreamChange, change
from pipeline.comparison.pairing import Pairs
from pipeline.comparison.shift import level
from pipeline.comparison.side import Side
from pipeline.signals import TAIL_OF_STEP


def stream_changes(before: Side, after: Side, pairs: Pairs) -> list[StreamChange]:
    """Every stream of the baseline with the one that it is in the optimised step, then those that are new."""
    found = []
    for stream, name in enumerate(before.sequence.names):
        other = pairs.streams.get(stream)
        mine = np.flatnonzero(before.sequence.stream == stream)
        theirs = np.flatnonzero(after.sequence.stream == other) if other is not None else np.array([], np.int64)
        label = (
            name if other is None or after.sequence.names[other] == name else f"{name} / {after.sequence.names[other]}"
        )
        found.append(_stream(label, before, after, mine, theirs))
    for other, name in enumerate(after.sequence.names):
        if other not in pairs.streams.values():
            theirs = np.flatnonzero(after.sequence.stream == other)
            found.append(_stream(name, before, after, np.array([], np.int64), theirs))
    return found


def _stream(name: str, before: Side, after: Side, mine: np.ndarray, theirs: np.ndarray) -> StreamChange:
    def both(label: str, first: np.ndarray | None, then: np.ndarray | None) -> Change:
        if first is not None and then is not None:
            return change(label, first, then, len(mine))
        had, has = (None if t is None else level(t) for t in (first, then))
        return Change(label, len(mine) or len(theirs), had, has, None, (has or had or level(np.zeros(1))).value)

    busy = [side.busy(k) if len(k) else None for side, k in ((before, mine), (after, theirs))]
    idle = [None if b is None else side.step - b for side, b in zip((before, after), busy, strict=True)]
    ends = [side.end[:, k].max(axis=1) if len(k) else None for side, k in ((before, mine), (after, theirs))]
    end = both("end", *ends)
    # A stream that the baseline does not have is late if it ends after everything else did in the baseline.
    reference = change("end", before.step if ends[0] is None else ends[0], ends[1], 0) if ends[1] is not None else None
    limit = float(np.median(before.step)) * TAIL_OF_STEP / 100
    late = reference is not None and reference.delta_us > limit
    if late and reference is not None and reference.faster is not None and reference.faster.high is not None:
        late = reference.faster.high < 0
    return StreamChange(name, both("busy", *busy), both("idle", *idle), end, late)
