"""Candidates: the targets of a step with their windows, grouped over layers, their copies budgeted together."""

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from pipeline.analysis.bandwidth import Leftover
from pipeline.analysis.budget import Copy, choose_sizes
from pipeline.analysis.operators import Limits
from pipeline.analysis.places import at, kernel_ref
from pipeline.analysis.results import Candidate, NoCandidate
from pipeline.analysis.sequence import Sequence
from pipeline.analysis.windows import NoWindow, Window, find_window
from pipeline.analysis.words import no_window_words
from pipeline.figures import Figure

if TYPE_CHECKING:
    from pipeline.simulator.machine import Machine

# Of a target that comes in many layers, so many layers in the middle decide; of very many targets, the longest.
_LAYERS = 16
_GROUPS = 300
_TOGETHER = 48  # targets whose copies are planned together
_GRAIN = 1 << 16  # a size that is no plain coefficient is rounded down to 64 KiB


@dataclass(frozen=True)
class Found:
    """All candidates of a step.

    Attributes:
        candidates, refused: as in `PhaseAnalysis`.
        in_flight: most bytes at once in L2.
        left_out: groups beyond `_GROUPS`, which were not looked at.
    """

    candidates: tuple[Candidate, ...]
    refused: tuple[NoCandidate, ...]
    in_flight: float
    left_out: int


@dataclass
class _Group:
    """One target over its layers: the members that decide, and what was found for them."""

    members: list[int]
    looked_at: list[int]
    weight: int
    wanted: int
    experts: bool
    resident: bool
    window: Window | NoWindow | None = None
    hops: tuple[int, ...] = ()
    dependencies: dict[int, int] | None = None


def find_candidates(step: Sequence, machine: "Machine", limits: Limits, coefficient: Decimal) -> Found:
    """Look at every memory-bound target.

    Windows are looked for twice: a kernel that has got a prefetch of its own draws less from HBM, so that the copy of
    the next one fits beside it (gate_up and down).

    Args:
        step: the kernels.
        machine: bandwidth, L2, copy engine.
        limits: thresholds.
        coefficient: share of the theoretical size that is wanted.
    """
    groups, left_out = _groups(step, coefficient)
    nominal = machine.nominal()
    usable = nominal.l2_bytes * nominal["l2_share"]
    left = Leftover(step.demand(machine), machine)
    for turn in (1, 2):
        if turn == 2:
            left = Leftover(step.demand(machine, _brought(step, groups)), machine)
        for group in groups:
            _choose(step, group, left, usable, limits)
    copies = {
        number: [
            Copy(number, float(step.end[d]), float(step.start[t]), _size(group))
            for t, d in (group.dependencies or {}).items()
        ]
        for number, group in enumerate(groups)
        if isinstance(group.window, Window)
    }
    # Dense weights are read whole; of an expert stack only what had tokens, so those come last.
    order = sorted(copies, key=lambda n: (groups[n].experts, -_size(groups[n]) * len(groups[n].members)))
    sizes, in_flight = choose_sizes(copies, order[:_TOGETHER], left, usable, limits.smallest_prefetch)
    candidates, refused = [], []
    for number, group in enumerate(groups):
        if isinstance(group.window, Window) and sizes.get(number):
            candidates.append(_candidate(step, group, group.window, sizes[number], left, machine))
        else:
            refused.append(_refused(step, group, minor=number in order[_TOGETHER:]))
    candidates.sort(key=lambda c: -c.saving.value)
    return Found(tuple(candidates), tuple(refused), in_flight, left_out)


def _groups(step: Sequence, coefficient: Decimal) -> tuple[list[_Group], int]:
    """Memory-bound targets by their place in the layer, the longest first, and how many were left out."""
    memory = (step.frame["class"] == "memory").to_numpy()
    weights, experts = step.column("weight_bytes"), step.column("experts")
    reason = step.frame["reason"].to_list()
    batched = (step.frame["kind"] == "batch_matmul").to_numpy()
    varies = batched & step.frame["varies"].to_numpy()  # its second operand is an activation, such as the keys
    members: dict[tuple[int, int, int], list[int]] = {}
    for index in np.flatnonzero(memory & (weights > 0) & ~varies).tolist():
        if step.kinds[index].target:
            members.setdefault(at(step, index), []).append(index)
    length = step.length.tolist()
    longest = sorted(members.values(), key=lambda m: -sum(length[k] for k in m))
    found = []
    for mine in longest[:_GROUPS]:
        skip = max(0, len(mine) - _LAYERS) // 2
        weight = int(weights[mine[len(mine) // 2]])
        wanted = int(Decimal(weight) * coefficient)
        stack = bool(experts[mine[0]] > 1)
        # More than HBM can give: a dense weight came from L2; of a stack, fewer experts may have been read.
        resident = not stack and 2 * sum(reason[m] == "above_peak" for m in mine) > len(mine)
        found.append(_Group(mine, mine[skip : skip + _LAYERS], weight, wanted, stack, resident))
    return found, len(longest[_GROUPS:])


def _choose(step: Sequence, group: _Group, left: Leftover, usable: float, limits: Limits) -> None:
    """The window of most layers; the others keep their own dependency only where it is the same kernel of the layer."""
    if group.resident or group.wanted < limits.smallest_prefetch:
        group.window = NoWindow("resident" if group.resident else "small")
        return
    found = {m: find_window(step, m, group.wanted, left, usable, limits) for m in group.looked_at}
    good = {m: w for m, w in found.items() if isinstance(w, Window)}
    if 2 * len(good) < len(found) or not good:
        bad = [w for w in found.values() if isinstance(w, NoWindow)]
        code = Counter(w.code for w in bad).most_common(1)[0][0]
        alike = sorted((w for w in bad if w.code == code), key=lambda w: w.best)
        group.window = alike[len(alike) // 2]
        group.dependencies = None
        return
    places = Counter((at(step, w.dependency), w.hops) for w in good.values())
    most = places.most_common(1)[0][0]
    same = {m: w for m, w in good.items() if (at(step, w.dependency), w.hops) == most}
    group.window = sorted(same.values(), key=lambda w: w.fits.nominal)[len(same) // 2]
    group.dependencies = {m: w.dependency for m, w in same.items()}


def _size(group: _Group) -> float:
    """Bytes that one copy by itself should bring."""
    assert isinstance(group.window, Window)
    return min(float(group.wanted), group.window.fits.nominal, group.window.room)


def _brought(step: Sequence, groups: Seq[_Group]) -> dict[int, float]:
    """Kernel -> bytes that it finds in L2, for all layers of the targets that have a window."""
    read, weight = step.column("read"), step.column("weight_bytes")
    return {
        m: _size(group) * read[m] / weight[m]
        for group in groups
        if isinstance(group.window, Window)
        for m in group.members
    }


def _candidate(
    step: Sequence, group: _Group, window: Window, size: float, left: Leftover, machine: "Machine"
) -> Candidate:
    assert group.dependencies
    alone = _size(group)
    limited = "coefficient" if size >= group.wanted else "window" if window.fits.nominal <= window.room else "l2"
    if size < 0.98 * alone:
        limited = "other_copies"
    max_size = int(size) if size >= group.wanted else int(size) // _GRAIN * _GRAIN
    middle = group.looked_at[len(group.looked_at) // 2]
    target = min(group.dependencies, key=lambda m: abs(m - middle))
    dependency = group.dependencies[target]
    ends = [(float(step.end[d]), float(step.start[t])) for t, d in group.dependencies.items()]
    length = step.length
    rows = step.frame["row"]
    return Candidate(
        target=kernel_ref(step, target),
        dependency=kernel_ref(step, dependency),
        nearest=kernel_ref(step, _nearest(step, target, dependency, max_size, left)),
        calls=len(group.members),
        shapes=step.frame["input_shapes"][target] or "",
        target_us=float(np.median(length[group.members])),
        weight_bytes=group.weight,
        max_size=max_size,
        limited_by=limited,
        window_us=float(np.median([e - b for b, e in ends])),
        busy_us=float(np.median([left.busy(b, e) for b, e in ends])),
        fits=Figure(window.fits.nominal, "bytes", window.fits.low, window.fits.high),
        room=window.room,
        link_us=window.link_us,
        passed=tuple(step.ops[k] for k in window.passed),
        rule=window.rule,
        priority=step.kinds[target].priority,
        saving=_saving(step, group, target, max_size, machine),
        pairs=tuple((int(rows[t]), int(rows[d])) for t, d in _all_pairs(step, group, window)),
    )


def _all_pairs(step: Sequence, group: _Group, window: Window) -> list[tuple[int, int]]:
    """Target and dependency in every layer in which the way back leads to the same kernel."""
    place, pairs = at(step, window.dependency), []
    for member in group.members:
        kernel = member
        for _ in range(window.hops):
            kernel = int(step.before[kernel]) if kernel >= 0 else -1
        if kernel >= 0 and at(step, kernel) == place:
            pairs.append((member, kernel))
    return pairs


def _nearest(step: Sequence, target: int, dependency: int, size: int, left: Leftover) -> int:
    """The last kernel before the target after whose end the size still fits."""
    kernel = int(step.before[target])
    while kernel not in (dependency, -1):
        if step.kinds[kernel].dependency and left.fits(step.end[kernel], step.start[target]).nominal >= size:
            return kernel
        kernel = int(step.before[kernel])
    return dependency


def _saving(step: Sequence, group: _Group, target: int, size: int, machine: "Machine") -> Figure:
    """Time per step that the targets need less: their bytes over HBM bandwidth, less the launch of each copy.

    The low end is a prefix that helps nothing (the cores with cold slices set the time).
    """
    share = step.column("read")[target] / group.weight
    length = float(np.median(step.length[group.members]))
    most = max(0.0, length - step.column("compute_us")[target])
    calls = len(group.members)
    values = {"low": machine.at("low"), "nominal": machine.at("nominal"), "high": machine.at("high")}
    per_call = {e: min(most, size * share / (v.hbm_peak * v["hbm_share"])) for e, v in values.items()}
    low = -calls * values["high"]["issue"]
    nominal = calls * (per_call["nominal"] - values["nominal"]["issue"])
    return Figure(nominal, "us", low, calls * (per_call["low"] - values["low"]["issue"]))


def _refused(step: Sequence, group: _Group, minor: bool) -> NoCandidate:
    middle = group.looked_at[len(group.looked_at) // 2]
    window = group.window if isinstance(group.window, NoWindow) else NoWindow("minor" if minor else "shared")
    names = [step.ops[k] for k in window.passed]
    length = step.length
    return NoCandidate(
        target=kernel_ref(step, middle),
        calls=len(group.members),
        shapes=step.frame["input_shapes"][middle] or "",
        target_us=float(np.median(length[group.members])),
        weight_bytes=group.weight,
        code=window.code,
        reason=no_window_words(window, names, group.wanted),
    )
