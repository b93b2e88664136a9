"""Copies whose windows overlap share one copy engine and one L2. Modelled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.analysis.bandwidth import Leftover


@dataclass(frozen=True)
class Copy:
    """One copy that is wanted.

    Attributes:
        group: number of its target.
        release: end of its dependency, us.
        deadline: start of its target.
        size: bytes that it would bring alone.
    """

    group: int
    release: float
    deadline: float
    size: float


def share_out(
    copies: Sequence[Copy], left: Leftover, usable: float, smallest: float
) -> tuple[dict[int, list[float]], float]:
    """What each copy brings before its target starts when all run.

    The engine works one copy after the other, in the order in which they are released; a copy that could not bring
    `smallest` bytes in time is left out, so that it delays none behind it.

    Args:
        copies: of all targets and layers.
        left: what kernels leave of the bandwidth.
        usable: bytes of L2 that hold weights.
        smallest: bytes.

    Returns:
        Group -> bytes of each of its copies, and the most bytes that wait in L2 at once.
    """
    granted: dict[int, list[float]] = {}
    waiting: list[tuple[float, float]] = []
    free_at, most = 0.0, 0.0
    for copy in sorted(copies, key=lambda c: (c.release, c.deadline, c.group)):
        begin = max(copy.release, free_at) + left.task.nominal
        waiting = [(deadline, size) for deadline, size in waiting if deadline > begin]
        held = sum(size for _, size in waiting)
        room = max(0.0, usable - held - left.filled(begin, copy.deadline))
        size = min(copy.size, left.brought(begin, copy.deadline), room)
        # A copy alone was measured by the same curve; what rounding takes is no lack.
        size = copy.size if size > 0.9999 * copy.size else size
        if size < smallest:
            granted.setdefault(copy.group, []).append(0.0)
            continue
        granted.setdefault(copy.group, []).append(size)
        free_at = min(left.arrival(begin, size), copy.deadline)
        waiting.append((copy.deadline, size))
        most = max(most, held + size)
    return granted, most


def choose_sizes(
    groups: Mapping[int, Sequence[Copy]], order: Sequence[int], left: Leftover, usable: float, smallest: float
) -> tuple[dict[int, float], float]:
    """Sizes at which the copies of all targets get along: one target after the other, none takes from those before it.

    That is the order of tuning of the specification: first a single target, then more together.

    Args:
        groups: target -> its copies, one per layer, with the size that each would bring alone.
        order: targets, the most valuable first.
        left, usable, smallest: as in `share_out`.

    Returns:
        Target -> bytes of each of its copies (0: it finds no place), and the most bytes that wait in L2 at once.
    """
    chosen: dict[int, float] = {}
    most = 0.0
    for group in order:
        alone = groups[group][0].size
        attempts = [alone, 0.75 * alone, 0.5 * alone, 0.25 * alone]
        chosen[group] = 0.0
        while attempts:
            size = attempts.pop(0)
            if size < smallest:
                break
            trial = {**{g: s for g, s in chosen.items() if s}, group: size}
            copies = [replace(c, size=s) for g, s in trial.items() for c in groups[g]]
            granted, held = share_out(copies, left, usable, smallest)
            brought = {g: float(np.median(granted[g])) for g in trial}
            if all(brought[g] >= 0.99 * s for g, s in trial.items()):
                chosen[group], most = size, held
                break
            if size == alone and smallest <= brought[group] < size:  # what was left for it may be just right
                attempts = sorted({brought[group], *attempts}, reverse=True)
    return chosen, most
