"""How much faster one set of steps is than another, with an interval: the unit of replication is the step.

The change is the Hodges-Lehmann estimate on logarithms (the median over all pairs of a baseline and an optimised step),
its interval is the one of the rank-sum (Mann-Whitney) test: exact for few steps whatever their distribution, hardly
moved by a slow step, and no random numbers. With too few steps to reach the confidence there is no interval, instead
of a wrong one: 3 and 3 steps differ completely by chance in one of ten cases.

Source: Hodges and Lehmann 1963; Bauer 1972 (interval from ordered pairwise differences).
"""

import math
from functools import lru_cache

import numpy as np

from pipeline.figures import Figure

CONFIDENCE = 0.95
# Up to so many pairs the distribution of the rank sum is counted exactly, above it is normal.
_EXACT = 2500
# Pairs of more steps than this of each side are not formed: evenly spread steps stand for all.
MOST_STEPS = 400
_Z = 1.959964


def faster(before: np.ndarray, after: np.ndarray) -> Figure | None:
    """Change of a time, % of the baseline, positive = faster, measured.

    Args:
        before, after: [steps] the same time in each step, us.

    Returns:
        The figure, without an interval if the steps are too few; None where a time is 0 (there is nothing to compare).
    """
    before, after = _spread(before), _spread(after)
    if not (len(before) and len(after) and (before > 0).all() and (after > 0).all()):
        return None
    logs = np.sort((np.log(after)[None, :] - np.log(before)[:, None]).ravel())
    value = _percent(float(np.median(logs)))
    cut = rank_cut(len(before), len(after))
    if cut is None:
        return Figure(value, "%", provenance="measured")
    return Figure(value, "%", _percent(float(logs[-1 - cut])), _percent(float(logs[cut])), "measured")


def level(times: np.ndarray, unit: str = "us") -> Figure:
    """Median over the steps with 10 and 90 %; no band for a single step."""
    low, value, high = (float(v) for v in np.quantile(times, (0.1, 0.5, 0.9)))
    if len(times) == 1:
        return Figure(value, unit, provenance="measured")
    return Figure(value, unit, low, high, "measured")


@lru_cache(maxsize=256)
def rank_cut(n: int, m: int) -> int | None:
    """How many of the n x m ordered differences lie outside of the interval on each side.

    Args:
        n, m: steps of the two sides.

    Returns:
        k such that the interval goes from the difference number k to the one number k from the end, counted from 0;
        None if even the whole range does not reach `CONFIDENCE`.
    """
    if n * m > _EXACT:
        return max(0, math.floor(n * m / 2 - 0.5 - _Z * math.sqrt(n * m * (n + m + 1) / 12)))
    counts = _rank_sums(n, m)
    tail, total, cut = 0, math.comb(n + m, n), 0
    for count in counts:
        tail += count
        if tail > total * (1 - CONFIDENCE) / 2:
            break
        cut += 1
    return cut - 1 if cut else None


def _rank_sums(n: int, m: int) -> list[int]:
    """How many of the (n + m choose n) orders have the rank sum u, for u from 0 to n m: a Gaussian binomial."""
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):  # times 1 - q^(m + i)
            counts[u] -= counts[u - m - i]
        for u in range(i, n * m + 1):  # over 1 - q^i
            counts[u] += counts[u - i]
    return counts


def _spread(times: np.ndarray) -> np.ndarray:
    if len(times) <= MOST_STEPS:
        return times
    return times[np.linspace(0, len(times) - 1, MOST_STEPS).round().astype(int)]


def _percent(log: float) -> float:
    return -100.0 * math.expm1(log)
