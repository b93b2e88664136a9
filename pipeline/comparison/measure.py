"""What two paired profiles measure: targets, windows, streams, tails, movers."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.analysis.operators import operator_table
from pipeline.analysis.places import Place, at, kernel_ref
from pipeline.comparison.changes import Change, Measured, TargetChange, change
from pipeline.comparison.pairing import Pairs
from pipeline.comparison.shift import faster, level
from pipeline.comparison.side import Side
from pipeline.comparison.streams import stream_changes
from pipeline.effects import TAIL_PERCENT, TAIL_US

# Classes of kernels that do not wait for memory: their times tell the clock and the host, not the bandwidth.
STEADY = ("launch", "vector", "scalar", "compute")


def measure(before: Side, after: Side, pairs: Pairs, hbm_peak: float, wanted: Sequence[str] = ()) -> Measured:
    """Measure everything.

    Args:
        before, after: the steps.
        pairs: which kernel is which.
        hbm_peak: bytes per us.
        wanted: labels of the targets (`MatMulV3 4/7`); empty takes every memory-bound one of the baseline.
    """
    partner = pairs.partner()
    bound = memory_bound(before)
    every = [k for k in bound if not wanted or kernel_ref(before.sequence, k).label in wanted]
    targets = [k for k in every if k in partner]
    windows = _windows(before, targets, bound, partner)
    inside = sorted({k for found in windows.values() for k in found})
    at_place = _by_place(before, pairs.left.tolist())
    found = [_target(before, after, partner, m, windows, hbm_peak) for m in _by_place(before, targets).values()]
    classes = before.sequence.frame["class"].to_list()
    apart = set(bound)
    steady = [k for k in pairs.left.tolist() if classes[k] in STEADY and k not in apart]
    slower = [c for k in pairs.left.tolist() if (c := _tail(before, after, k, partner[k])) is not None]
    movers = [_places(before, after, partner, members) for members in at_place.values()]
    movers += _one_side(before, pairs.only_left, True) + _one_side(after, pairs.only_right, False)
    busy_before, busy_after = before.busy(), after.busy()
    return Measured(
        step=change("step", before.step, after.step, len(before)),
        busy=change("busy", busy_before, busy_after, len(before)),
        idle=change("idle", before.step - busy_before, after.step - busy_after, 0),
        targets=tuple(sorted(found, key=lambda t: -t.before.value * t.calls)),
        target_sum=_sum("targets", before, after, partner, targets),
        unpaired_targets=len(every) - len(targets),
        windows=_sum("windows", before, after, partner, inside),
        streams=tuple(stream_changes(before, after, pairs)),
        slower=tuple(sorted(slower, key=lambda c: -c.delta_us)),
        steady=_sum("steady", before, after, partner, steady),
        movers=tuple(sorted(movers, key=lambda c: -abs(c.delta_us))),
        copies=_copies(before, after, pairs),
    )


def memory_bound(side: Side) -> list[int]:
    """Positions of the kernels whose weight a prefetch could bring: memory-bound, of a kind that is a target."""
    memory = (side.sequence.frame["class"] == "memory").to_numpy() & (side.sequence.column("weight_bytes") > 0)
    return [k for k in np.flatnonzero(memory).tolist() if side.sequence.kinds[k].target]


def _sum(label: str, before: Side, after: Side, partner: Mapping[int, int], members: list[int]) -> Change | None:
    if not members:
        return None
    return change(label, before.total(members), after.total([partner[k] for k in members]), len(members))


def _by_place(side: Side, kernels: list[int]) -> dict[Place, list[int]]:
    found: dict[Place, list[int]] = {}
    for kernel in kernels:
        found.setdefault(at(side.sequence, kernel), []).append(kernel)
    return found


def _places(before: Side, after: Side, partner: Mapping[int, int], members: list[int]) -> Change:
    """The kernels at one place of all layers."""
    ref = kernel_ref(before.sequence, members[0])
    found = _sum(f"{ref.label}, stream {ref.stream}", before, after, partner, members)
    assert found is not None
    return found


def _target(
    before: Side,
    after: Side,
    partner: Mapping[int, int],
    members: list[int],
    windows: Mapping[int, list[int]],
    hbm_peak: float,
) -> TargetChange:
    theirs = [partner[k] for k in members]
    ref = kernel_ref(before.sequence, members[len(members) // 2])
    first, then = before.total(members), after.total(theirs)
    moved = float(np.median(before.sequence.column("bytes")[members]))
    known = moved > 0 and bool(before.sequence.frame["known"].to_numpy()[members].all())
    each_before, each_after = level(first / len(members)), level(then / len(members))
    rates = [moved / figure.value if known and figure.value else None for figure in (each_before, each_after)]
    inside = sorted({k for m in members for k in windows[m]})
    return TargetChange(
        label=ref.label,
        name=ref.name,
        op_type=ref.op_type,
        shapes=before.sequence.frame["input_shapes"][members[0]] or "",
        calls=len(members),
        before=each_before,
        after=each_after,
        faster=faster(first, then),
        gb_s_before=None if rates[0] is None else rates[0] / 1e3,
        gb_s_after=None if rates[1] is None else rates[1] / 1e3,
        from_l2=rates[0] is not None and rates[1] is not None and rates[0] <= hbm_peak < rates[1],
        window=_sum(f"before {ref.label}", before, after, partner, inside),
    )


def _windows(before: Side, targets: list[int], bound: list[int], partner: Mapping[int, int]) -> dict[int, list[int]]:
    """Target -> the kernels of all streams that run between the target before it on its critical path and itself.

    Targets are left out (they have a point of their own), and so is communication, whose time holds waiting.
    """
    step = before.sequence
    hops = int(operator_table().limits.hops)
    others = set(bound)
    counted = np.array([k not in others and step.kinds[k].engine != "communication" for k in range(len(before))])
    counted &= np.isin(np.arange(len(before)), list(partner))
    found = {}
    for target in targets:
        kernel, last = int(step.before[target]), target
        for _ in range(hops):
            if kernel < 0 or kernel in others:
                break
            kernel, last = int(step.before[kernel]), kernel
        opened = float(step.end[kernel]) if kernel >= 0 and kernel in others else float(step.start[last])
        inside = counted & (step.end > opened + 1e-9) & (step.start < step.start[target] - 1e-9)
        found[target] = np.flatnonzero(inside).tolist()
    return found


def _tail(before: Side, after: Side, kernel: int, other: int) -> Change | None:
    """A kernel that takes much longer than before. Communication is left out: its time holds waiting for ranks."""
    if before.sequence.kinds[kernel].engine == "communication":
        return None
    first, then = before.duration[:, kernel], after.duration[:, other]
    more = float(np.median(then) - np.median(first))
    if more <= TAIL_US or more <= float(np.median(first)) * TAIL_PERCENT / 100:
        return None
    ref = kernel_ref(before.sequence, kernel)
    layer = f" of layer {ref.layer}" if ref.layer >= 0 else ""
    found = change(f"{ref.label}{layer}, stream {ref.stream}", first, then, 1)
    if found.faster is not None and found.faster.high is not None and found.faster.high >= 0:
        return None
    return found


def _one_side(side: Side, kernels: np.ndarray, first: bool) -> list[Change]:
    """Kernels that only one step has, by operator."""
    names: dict[str, list[int]] = {}
    for kernel in kernels.tolist():
        names.setdefault(side.sequence.ops[kernel] or side.names[kernel], []).append(kernel)
    found = []
    for name, members in names.items():
        figure = level(side.total(members))
        sides = (figure, None, None, -figure.value) if first else (None, figure, None, figure.value)
        found.append(Change(name, len(members), *sides))
    return found


def _copies(before: Side, after: Side, pairs: Pairs) -> Change | None:
    if not len(pairs.copies) and not len(pairs.copies_before):
        return None
    had, has = (
        level(side.total(found)) if len(found) else None
        for side, found in ((before, pairs.copies_before), (after, pairs.copies))
    )
    delta = (has.value if has else 0.0) - (had.value if had else 0.0)
    return Change("copies", max(len(pairs.copies), len(pairs.copies_before)), had, has, None, delta)
