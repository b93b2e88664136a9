"""The window of one target: after which kernel its weight may be copied, by the decision table of the specification.

From the target backwards along its critical path:

- communication is no dependency (row *communication*); a copy may run beside it, which is told;
- kernels that leave the bandwidth free (3b) make up the window;
- the first kernel that takes the bandwidth ends it, and its **output** is the dependency (3a): once it is done the
  bandwidth is free. If too little fits before the target, the dependency moves further forward, past that kernel;
- too little everywhere, or no room in L2: no safe window (3c).
"""

from dataclasses import dataclass

from pipeline.analysis.bandwidth import Band, Leftover
from pipeline.analysis.operators import Limits
from pipeline.analysis.sequence import Sequence


@dataclass(frozen=True)
class Window:
    """Where the copy of one target may run.

    Attributes:
        dependency: the kernel whose output releases the copy.
        rule: `3a` (a kernel that takes bandwidth itself) or `3b`.
        fits: bytes that one copy alone brings in the window.
        room: bytes that L2 still holds at the target, of what a copy brought.
        hops: kernels back along the critical path.
        link_us: time of communication in the window.
        passed: kernels in the window that take bandwidth.
    """

    dependency: int
    rule: str
    fits: Band
    room: float
    hops: int
    link_us: float
    passed: tuple[int, ...]


@dataclass(frozen=True)
class NoWindow:
    """Why a target has none.

    Attributes:
        code: `first` (nothing before it in the step), `link_only` (only communication before it), `too_short`,
            `bandwidth` (kernels in the window take the bandwidth), `l2` (what runs between fills L2), `resident` (it is
            read from L2 already), `small` (less is wanted than one prefetch is worth).
        best: the most bytes that fit after any kernel in reach.
        passed: kernels in reach that take bandwidth.
        link_us: time of communication in reach.
    """

    code: str
    best: float = 0.0
    passed: tuple[int, ...] = ()
    link_us: float = 0.0


def find_window(
    step: Sequence, target: int, wanted: float, left: Leftover, usable: float, limits: Limits
) -> Window | NoWindow:
    """The window of a target.

    Args:
        step: the kernels.
        target: the kernel that reads the weight.
        wanted: bytes to bring.
        left: what the kernels leave of the bandwidth.
        usable: bytes of L2 that hold weights.
        limits: thresholds.
    """
    wanted = min(wanted, usable)  # of what L2 cannot hold, a part may be copied
    reach = _Reach(step, target, wanted, left, usable)
    enough = limits.enough * wanted
    kernel, hops = int(step.before[target]), 0
    while kernel >= 0 and hops < limits.hops and not _too_far(step, kernel, target):
        hops += 1
        found = reach.after(kernel, hops)
        if found is not None:
            if found.room < min(wanted, max(enough, limits.smallest_prefetch)):
                reach.pushed = True
                break  # what runs from here on pushes the copy out again
            reach.seen.append(found)
            stop = step.heavy[kernel] or reach.passed  # before the first heavy kernel, the whole free stretch is taken
            if stop and found.fits.nominal >= max(enough, limits.smallest_prefetch):
                return found
        if step.heavy[kernel] and reach.passed:
            break  # past two of them the copy would only wait
        reach.cross(kernel)
        kernel = int(step.before[kernel])
    return _best(reach, limits)


class _Reach:
    """The way back from one target."""

    def __init__(self, step: Sequence, target: int, wanted: float, left: Leftover, usable: float) -> None:
        self.step, self.target, self.wanted, self.left, self.usable = step, target, wanted, left, usable
        self.seen: list[Window] = []
        self.passed: list[int] = []
        self.link_us = 0.0
        self.hops = 0
        self.pushed = False

    def after(self, kernel: int, hops: int) -> Window | None:
        """The window that begins with the end of this kernel; None if its output is no dependency."""
        self.hops = hops
        if not self.step.kinds[kernel].dependency:
            return None
        begin, deadline = float(self.step.end[kernel]), float(self.step.start[self.target])
        room = max(0.0, self.usable - self.left.filled(begin, deadline))
        rule = "3a" if self.step.heavy[kernel] else "3b"
        fits = self.left.fits(begin, deadline)
        return Window(kernel, rule, fits, room, hops, self.link_us, tuple(self.passed))

    def open_share(self, window: Window) -> float:
        """How much of what the copy engine could bring in a window the kernels in it let it bring."""
        length = float(self.step.start[self.target] - self.step.end[window.dependency]) - self.left.task.nominal
        return window.fits.nominal / (length * self.left.engine.nominal) if length > 0 else 0.0

    def cross(self, kernel: int) -> None:
        """The window now holds this kernel too."""
        if self.step.kinds[kernel].flagged:
            self.link_us += float(self.step.end[kernel] - self.step.start[kernel])
        if self.step.heavy[kernel]:
            self.passed.append(kernel)


def _too_far(step: Sequence, kernel: int, target: int) -> bool:
    """More than one layer back."""
    places = step.places
    same = places.block[kernel] == places.block[target] != -1
    return bool(same and places.layer[target] - places.layer[kernel] > 1)


def _best(reach: _Reach, limits: Limits) -> Window | NoWindow:
    """No heavy kernel with enough after it was met: the nearest window that holds all, else the one that holds most."""
    useful = [
        w
        for w in reach.seen
        if min(w.fits.nominal, w.room) >= limits.smallest_prefetch
        # Beside a kernel that takes the bandwidth, what it leaves over is no window, unless it has its own prefetch.
        and not (w.passed and reach.open_share(w) < limits.enough)
    ]
    if useful:
        holds_all = [w for w in useful if min(w.fits.nominal, w.room) >= reach.wanted]
        # Passing a kernel that takes the bandwidth must bring something: half as much again.
        free = [w for w in useful if not w.passed]
        if free and not holds_all:
            most_free = max(free, key=lambda w: (w.fits.nominal, -w.hops))
            most = max(useful, key=lambda w: (min(w.fits.nominal, w.room), -w.hops))
            return most if min(most.fits.nominal, most.room) > 1.5 * most_free.fits.nominal else most_free
        return holds_all[0] if holds_all else max(useful, key=lambda w: (min(w.fits.nominal, w.room), -w.hops))
    best = max((w.fits.nominal for w in reach.seen), default=0.0)
    passed, link = tuple(reach.passed), reach.link_us
    if not reach.hops:
        return NoWindow("first")
    if not reach.seen:
        return NoWindow("l2" if reach.pushed else "link_only", best, passed, link)
    return NoWindow("l2" if reach.pushed else "bandwidth" if passed else "too_short", best, passed, link)
