"""Which kernel of the optimised step is which of the baseline's, per stream.

The optimised step may have kernels more (copies) or less (fused ones), and streams may have other numbers, so the
sequences are aligned, not compared by position.
"""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from pipeline.comparison.side import Side
from pipeline.mapping.align import GAP, NEVER, SAME_BYTES, Alignment, Sequence, align
from pipeline.mapping.placed import SAME_KIND, SAME_OPERATOR

# Kernels of these operators are the copies of a prefetch.
_COPIES = ("cmo", "prefetch")
_SUPER = "superkernel"


@dataclass(frozen=True, eq=False)
class Pairs:
    """The kernels of both steps laid over each other, by position in each.

    Attributes:
        left, right: [k] positions of the pairs in the baseline and in the optimised step, in order of the baseline.
        only_left, only_right: positions of kernels that only one of them has, copies left out.
        copies, copies_before: positions in the optimised step and in the baseline of what prefetches show up as, where
            the profiler records them.
        streams: baseline's stream number -> the one of the optimised step that it is.
    """

    left: np.ndarray
    right: np.ndarray
    only_left: np.ndarray
    only_right: np.ndarray
    copies: np.ndarray
    copies_before: np.ndarray
    streams: dict[int, int]

    def partner(self) -> dict[int, int]:
        """Position in the baseline -> position in the optimised step."""
        return dict(zip(self.left.tolist(), self.right.tolist(), strict=True))


def pair(before: Side, after: Side) -> Pairs:
    """Align the two steps, stream by stream, and what is left over once more in order of time.

    Raises:
        ValueError: a stream has too many kernels to be aligned.
    """
    copies_before, copies = (
        np.array([k for k in range(len(side)) if is_copy(side, k)], np.int64) for side in (before, after)
    )
    mine, theirs = _operators(before), _operators(after)
    codes = {name: n for n, name in enumerate(dict.fromkeys([*mine, *theirs]))}
    base = _scores(list(codes))
    left, right = _line(before, mine, codes), _line(after, theirs, codes)
    lanes, others = _lanes(before, copies_before), _lanes(after, copies)
    tried = []
    for stream, positions in lanes.items():
        for other, numbers in others.items():
            found = _aligned(left.take(positions), right.take(numbers), base)
            same_name = before.sequence.names[stream] == after.sequence.names[other]
            tried.append((found.score - GAP * (len(positions) + len(numbers)), same_name, stream, other, found))
    tried.sort(key=lambda t: (-t[0], not t[1], t[2], t[3]))
    streams: dict[int, int] = {}
    partner: dict[int, int] = {}
    for gain, _, stream, other, found in tried:
        if gain > 0 and stream not in streams and other not in streams.values():
            streams[stream] = other
            partner |= dict(zip(lanes[stream][found.left].tolist(), others[other][found.right].tolist(), strict=True))
    rest = _without(np.arange(len(before)), np.array([*partner, *copies_before.tolist()], np.int64))
    taken = np.array([*partner.values(), *copies.tolist()], np.int64)
    rest_after = _without(np.arange(len(after)), taken)
    again = align(left.take(rest), right.take(rest_after), base)
    partner |= dict(zip(rest[again.left].tolist(), rest_after[again.right].tolist(), strict=True))
    ours = np.array(sorted(partner), np.int64)
    paired = np.array([partner[k] for k in ours.tolist()], np.int64)
    return Pairs(
        ours,
        paired,
        _without(np.arange(len(before)), np.concatenate([ours, copies_before])),
        _without(np.arange(len(after)), np.concatenate([paired, copies])),
        copies,
        copies_before,
        streams,
    )


def is_copy(side: Side, kernel: int) -> bool:
    """Whether a kernel is the copy of a prefetch, by its operator or name."""
    words = (side.sequence.ops[kernel].lower(), side.names[kernel].lower())
    return any(word in text for text in words for word in _COPIES)


def is_super_kernel(side: Side, kernel: int) -> bool:
    """Whether a kernel is a SuperKernel, by its operator or name."""
    words = (side.sequence.ops[kernel], side.names[kernel])
    return any(_SUPER in text.lower().replace("_", "") for text in words)


def _operators(side: Side) -> list[tuple[str, Hashable]]:
    """(kind, operator) of each kernel."""
    return [(kind.name, op) for kind, op in zip(side.sequence.kinds, side.sequence.ops, strict=True)]


def _scores(names: list[tuple[str, Hashable]]) -> np.ndarray:
    """[names, names] score of a pair: the same operator, another of the same known kind, never."""
    kinds = np.array([kind for kind, _ in names])
    alike = (kinds[:, None] == kinds[None, :]) & (kinds[:, None] != "other")
    return np.where(np.eye(len(names), dtype=bool), SAME_OPERATOR, np.where(alike, SAME_KIND, NEVER))


def _line(side: Side, operators: list[tuple[str, Hashable]], codes: dict[tuple[str, Hashable], int]) -> Sequence:
    known = side.sequence.frame["known"].to_numpy()
    weights = np.where(known, side.sequence.column("weight_bytes"), -1.0)
    return Sequence(np.array([codes[op] for op in operators], np.int64), weights, weights)


def _aligned(left: Sequence, right: Sequence, base: np.ndarray) -> Alignment:
    """The alignment; equal sequences, the usual case, need no search."""
    same = len(left) == len(right) and (left.family == right.family).all() and (left.low == right.low).all()
    if not same:
        return align(left, right, base)
    every = np.arange(len(left))
    score = float(base[left.family, left.family].sum() + SAME_BYTES * (left.low > 0).sum())
    return Alignment(every, every, np.full(len(left), np.inf), score)


def _lanes(side: Side, copies: np.ndarray) -> dict[int, np.ndarray]:
    """Number of the stream -> its kernels, copies left out."""
    stream = side.sequence.stream
    return {int(s): _without(np.flatnonzero(stream == s), copies) for s in np.unique(stream)}


def _without(positions: np.ndarray, taken: np.ndarray) -> np.ndarray:
    return positions[~np.isin(positions, taken)]
