"""Steps of a profile made by hand, for the tests of mapping and replay."""

from collections.abc import Sequence

import numpy as np

from pipeline.analysis.operators import operator_table
from pipeline.mapping.step import Step

Row = tuple[str, int, int]  # type, stream, bytes of its weight


def make_step(
    rows: Sequence[Row], us: float | Sequence[float] = 9.0, starts: Sequence[float] | None = None, gap: float = 1.0
) -> Step:
    """A step whose kernels stand one behind the other, or start when told.

    Args:
        rows: the kernels.
        us: time of each.
        starts: us; None: one after the other, with `gap` between them.
        gap: us.
    """
    table = operator_table()
    types = tuple(kind for kind, _, _ in rows)
    weights = np.array([float(size) for _, _, size in rows])
    times = np.broadcast_to(np.asarray(us, float), (len(rows),)).copy()
    begin = np.concatenate(([0.0], np.cumsum(times + gap)[:-1])) if starts is None else np.asarray(starts, float)
    names = sorted({stream for _, stream, _ in rows})
    streams = np.array([names.index(stream) for _, stream, _ in rows], np.int64)
    n = len(rows)
    before = np.full(n, -1)
    for at in range(len(rows)):
        earlier = [k for k in range(at) if streams[k] == streams[at]]
        before[at] = earlier[-1] if earlier else -1
    return Step(
        np.arange(n),
        types,
        tuple(table.kind(t) for t in types),
        streams,
        tuple(map(str, names)),
        begin,
        begin + times,
        times,
        before,
        weights,
        np.repeat(weights[:, None], 3, axis=1),
        np.zeros(n),
        np.zeros(n),
        np.zeros(n, np.int64),
        ("bf16",) * n,
        float((begin + times).max()) if n else 0.0,
    )
