"""Global alignment of two kernel sequences: what a profile shows against what the model was traced to do.

Needleman-Wunsch with linear gaps. A kernel that only one side has (fused, split, missing) is a gap. The sequences
repeat layer after layer, so a pair is only as good as the next best place for it: the margin says how much worse
that is.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.simulator.engine import compiled

GAP = -1.0  # a kernel that only one side has
SAME_BYTES = 6.0  # on top of the base score: both read a weight of the same size
OTHER_BYTES = -4.0  # instead of it: the same operator on a weight of another size
NEVER = -1e9
TOLERANCE = 0.02  # relative, of weight bytes: scales and paddings are counted or not
MOST_CELLS = 60_000_000


@dataclass(frozen=True)
class Sequence:
    """One side of an alignment, in order.

    Attributes:
        family: [n] operator family, row or column of the base scores.
        low, high: [n] bytes of the weight it reads; both -1 if that is not known, both 0 if it reads none.
    """

    family: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __len__(self) -> int:
        return len(self.family)

    def take(self, chosen: np.ndarray) -> "Sequence":
        """The kernels at these positions."""
        return Sequence(self.family[chosen], self.low[chosen], self.high[chosen])


@dataclass(frozen=True)
class Alignment:
    """The best alignment.

    Attributes:
        left, right: [k] positions of the pairs, ascending.
        margin: [k] by how much the best alignment without that pair scores lower; 0: another one is as good.
        score: of the whole alignment.
    """

    left: np.ndarray
    right: np.ndarray
    margin: np.ndarray
    score: float


def align(left: Sequence, right: Sequence, base: np.ndarray) -> Alignment:
    """Align two sequences.

    Args:
        left, right: the kernels.
        base: [families, families] score of a pair by operator; `NEVER` where the two are never the same kernel.

    Raises:
        ValueError: the sequences are too long to be aligned in memory.
    """
    _check_size(left, right)
    n, m = len(left), len(right)
    arrays = (*_arrays(left), *_arrays(right), base.astype(np.float32))
    forward = _fill(*arrays)
    backward = _fill(*(a[::-1].copy() for a in arrays[:6]), arrays[6])[::-1, ::-1]
    pairs = _trace(forward, *arrays)
    margins = _margins(forward, backward, pairs, *arrays)
    return Alignment(pairs[:, 0], pairs[:, 1], margins, float(forward[n, m]))


def best_score(left: Sequence, right: Sequence, base: np.ndarray) -> float:
    """The score alone of `align`, which is cheaper.

    Raises:
        ValueError: as `align`.
    """
    _check_size(left, right)
    return float(_fill(*_arrays(left), *_arrays(right), base.astype(np.float32))[len(left), len(right)])


def _check_size(left: Sequence, right: Sequence) -> None:
    if len(left) * len(right) > MOST_CELLS:
        message = f"{len(left)} x {len(right)} kernels are too many to align; the limit is {MOST_CELLS} pairs"
        raise ValueError(message)


def _arrays(side: Sequence) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return side.family.astype(np.int64), side.low.astype(np.float64), side.high.astype(np.float64)


@compiled
def _pair(i, j, family, low, high, other, other_low, other_high, base):  # type: ignore[no-untyped-def]
    score = base[family[i], other[j]]
    if score > NEVER / 2 and low[i] > 0.0 and other_low[j] > 0.0:
        same = low[i] <= other_high[j] * (1.0 + TOLERANCE) and high[i] * (1.0 + TOLERANCE) >= other_low[j]
        score = score + SAME_BYTES if same else OTHER_BYTES
    return score


@compiled
def _fill(family, low, high, other, other_low, other_high, base):  # type: ignore[no-untyped-def]
    """[n + 1, m + 1] score of the best alignment of the first i and the first j kernels."""
    n, m = len(family), len(other)
    best = np.empty((n + 1, m + 1), np.float32)
    for j in range(m + 1):
        best[0, j] = GAP * j
    for i in range(1, n + 1):
        best[i, 0] = GAP * i
        for j in range(1, m + 1):
            paired = best[i - 1, j - 1] + _pair(i - 1, j - 1, family, low, high, other, other_low, other_high, base)
            best[i, j] = max(paired, max(best[i - 1, j], best[i, j - 1]) + GAP)
    return best


@compiled
def _trace(best, family, low, high, other, other_low, other_high, base):  # type: ignore[no-untyped-def]
    """[k, 2] pairs of one best alignment; of equal ones, the one whose pairs come last."""
    i, j = best.shape[0] - 1, best.shape[1] - 1
    found = np.empty((min(i, j), 2), np.int64)
    count = 0
    while i > 0 and j > 0:
        score = _pair(i - 1, j - 1, family, low, high, other, other_low, other_high, base)
        if score > NEVER / 2 and best[i, j] == np.float32(best[i - 1, j - 1] + score):
            i, j = i - 1, j - 1
            found[count, 0], found[count, 1] = i, j
            count += 1
        elif best[i, j] == np.float32(best[i - 1, j] + GAP):
            i -= 1
        else:
            j -= 1
    return found[:count][::-1].copy()


@compiled
def _margins(forward, backward, pairs, family, low, high, other, other_low, other_high, base):  # type: ignore[no-untyped-def]
    """For each pair, the best score minus that of the best alignment that puts its left kernel elsewhere."""
    n, m = forward.shape[0] - 1, forward.shape[1] - 1
    total = forward[n, m]
    margins = np.empty(len(pairs), np.float64)
    for k in range(len(pairs)):
        i, chosen = pairs[k, 0], pairs[k, 1]
        second = NEVER
        for j in range(m + 1):
            second = max(second, forward[i, j] + GAP + backward[i + 1, j])  # no partner at all
            if j < m and j != chosen:
                score = _pair(i, j, family, low, high, other, other_low, other_high, base)
                second = max(second, forward[i, j] + score + backward[i + 1, j + 1])
        margins[k] = total - second
    return margins
