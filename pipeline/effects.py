"""What a forecast says about each target: its kernels, its window, its copies. Numbers only, no judgement."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.workload import Kernel, Workload
from pipeline.legality import Placement
from transforms.plan import Plan

if TYPE_CHECKING:
    from pipeline.simulator.forecast import Forecast
    from pipeline.simulator.parameters import Parameters
    from pipeline.simulator.simulate import CopyResult, StepResult


@dataclass(frozen=True)
class Effect:
    """One target of the recipe. Times in us (means over its kernels or copies), sizes in bytes, shares 0 to 1.

    Attributes:
        target: name in the recipe.
        entries: positions in the plan.
        kernels: the kernels that read its weights.
        op: operator of the first of them.
        baseline, optimized: time of one such kernel.
        memory_bound: share of the kernel's baseline time in which HBM sets the pace, other streams' traffic included.
        window: time between the dependency's end and the target's start, baseline.
        copy_time: time of one copy, from its release to its last byte.
        window_baseline, window_optimized: summed time of the kernels that run in the windows, targets left out.
        window_ops: operators in the window of the first entry, in the order of their start.
        covered: share of the copied bytes that had arrived when the target started.
        useful: share of the copied bytes that the target did not have to read from HBM.
        pushed_out: share of the copied bytes that had left L2 before they were read.
    """

    target: str
    entries: tuple[int, ...]
    kernels: tuple[int, ...]
    op: str
    baseline: float
    optimized: float
    memory_bound: float
    window: float
    copy_time: float
    window_baseline: float
    window_optimized: float
    window_ops: tuple[str, ...]
    covered: float
    useful: float
    pushed_out: float

    @property
    def faster(self) -> float:
        """Change of the target kernel's time, % of baseline, positive = faster."""
        return change(self.baseline, self.optimized)

    @property
    def window_change(self) -> float:
        """Change of the kernels in the windows, % of baseline, positive = faster; 0 for empty windows."""
        return change(self.window_baseline, self.window_optimized)


@dataclass(frozen=True)
class Effects:
    """All targets together.

    Attributes:
        targets: in the order in which the plan names them first.
        kernels: every kernel that reads a planned weight.
        target_baseline, target_optimized: their summed time, us.
        window_baseline, window_optimized: summed time of all kernels in any window, targets left out, us.
        in_flight: most bytes of copies under way or not read yet, at any moment.
        slower: kernels that got slower by more than `TAIL_PERCENT` and `TAIL_US`, worst first, at most 5.
        streams: per stream what became of it.
    """

    targets: tuple[Effect, ...]
    kernels: tuple[int, ...]
    target_baseline: float
    target_optimized: float
    window_baseline: float
    window_optimized: float
    in_flight: float
    slower: tuple["Slower", ...]
    streams: tuple["Stream", ...]


@dataclass(frozen=True)
class Slower:
    """A kernel that takes longer than before, us."""

    kernel: Kernel
    baseline: float
    optimized: float


@dataclass(frozen=True)
class Stream:
    """One stream, us: end of its last kernel, and the time in which it ran kernels (union of intervals)."""

    name: str
    end_baseline: float
    end_optimized: float
    busy_baseline: float
    busy_optimized: float


# A kernel is a new long tail if it got slower by more than both.
TAIL_PERCENT = 25.0
TAIL_US = 5.0


def change(before: float, after: float) -> float:
    """Per cent of `before`, positive = faster."""
    return 100.0 * (before - after) / before if before else 0.0


def effects(
    workload: Workload,
    plan: Plan,
    placements: Sequence[Placement],
    forecast: "Forecast",
    parameters: "Parameters",
    scoped: Sequence[int] = (),
) -> Effects:
    """Compare the nominal steps of baseline and plan.

    Args:
        workload: one decode step.
        plan: the plan.
        placements: where each entry of the plan is issued and read.
        forecast: of that plan; its copies are in plan order.
        parameters: the machine's nominal values, for the share of HBM time.
        scoped: kernels inside SuperKernel scopes: the target kernels of a plan without prefetch.
    """
    before, after = forecast.baseline_step, forecast.optimised_step
    start0, end0 = np.array(before.starts), np.array(before.ends)
    start1, end1 = np.array(after.starts), np.array(after.ends)
    time0, time1 = end0 - start0, end1 - start1
    readers = _readers(workload, plan)
    ours = np.zeros(len(workload.kernels), bool)
    ours[sorted({k for found in readers.values() for k in found}) if readers else list(scoped)] = True
    counted = ~ours & np.array([k.engine != "idle" for k in workload.kernels], bool)

    entries: dict[str, list[int]] = {}
    for position, entry in enumerate(plan.prefetch):
        entries.setdefault(entry.target, []).append(position)
    found, anywhere = [], np.zeros(len(workload.kernels), bool)
    for target, positions in entries.items():
        kernels = sorted({k for p in positions for k in readers[plan.prefetch[p].weight]})
        opened = end0[[placements[p].producer for p in positions]]
        closed = start0[[placements[p].reader for p in positions]]
        inside = (end0[None] > opened[:, None] + 1e-9) & (start0[None] < closed[:, None] - 1e-9) & counted[None]
        window = inside.any(axis=0)
        anywhere |= window
        first = np.flatnonzero(inside[0])
        copies = [after.copies[p] for p in positions]
        size = sum(plan.prefetch[p].max_size for p in positions) or 1
        moved = sum(c.moved for c in copies) or 1.0
        arrived = sum(_arrived(c, start1[placements[p].reader]) for c, p in zip(copies, positions, strict=True))
        waiting = sum(
            hbm_time(workload.kernels[k], float(time0[k]), before.kernel_hbm_bytes[k], parameters) for k in kernels
        )
        found.append(
            Effect(
                target=target,
                entries=tuple(positions),
                kernels=tuple(kernels),
                op=workload.kernels[kernels[0]].op,
                baseline=float(time0[kernels].mean()),
                optimized=float(time1[kernels].mean()),
                memory_bound=min(1.0, waiting / max(float(time0[kernels].sum()), 1e-9)),
                window=float((closed - opened).mean()),
                copy_time=float(np.mean([c.end - c.release for c in copies])),
                window_baseline=float(time0[window].sum()),
                window_optimized=float(time1[window].sum()),
                window_ops=tuple(workload.kernels[k].op for k in first[np.argsort(start0[first], kind="stable")]),
                covered=float(min(1.0, arrived / size)),
                useful=min(1.0, sum(c.useful for c in copies) / moved),
                pushed_out=min(1.0, sum(c.pushed_out for c in copies) / moved),
            )
        )
    return Effects(
        targets=tuple(found),
        kernels=tuple(np.flatnonzero(ours).tolist()),
        target_baseline=float(time0[ours].sum()),
        target_optimized=float(time1[ours].sum()),
        window_baseline=float(time0[anywhere].sum()),
        window_optimized=float(time1[anywhere].sum()),
        in_flight=_in_flight(after, [placement.reader for placement in placements]),
        slower=_slower(workload, time0, time1),
        streams=_streams(workload, before, after),
    )


def _readers(workload: Workload, plan: Plan) -> dict[str, list[int]]:
    planned = {p.weight for p in plan.prefetch}
    readers: dict[str, list[int]] = {weight: [] for weight in planned}
    for kernel in workload.kernels:
        for read in kernel.weights:
            if read.weight in planned:
                readers[read.weight].append(kernel.index)
    return readers


def _arrived(copy: "CopyResult", now: float) -> float:
    """Bytes of a copy's range that it had brought, or found in L2, by `now`.

    What a copy finds that starts later was brought by the target's own read: it did not come in time.
    """
    found = copy.resident if copy.start <= now else 0.0
    return found + copy.moved * _progress(copy.start, copy.end, now)


def _progress(start: float, end: float, now: float) -> float:
    """Share of a copy that is done at `now`; its rate is taken as constant."""
    return float(np.clip((now - start) / (end - start), 0.0, 1.0)) if end > start else float(now >= end)


def hbm_rate(kernel: Kernel, parameters: "Parameters") -> float:
    """Bytes/us that a kernel can draw from HBM if nothing else runs."""
    hbm = parameters.hbm_peak * parameters["hbm_share"]
    return min(hbm, (kernel.cores or parameters.cores) * parameters["core_bandwidth"])


def hbm_time(kernel: Kernel, time: float, moved: float, parameters: "Parameters") -> float:
    """How long HBM sets the pace of a kernel, us.

    All but its fixed time if the transfer ends last (beside other streams it takes longer than alone), else what the
    transfer takes by itself: the rest is compute.

    Args:
        kernel: the kernel.
        time: what it took, us.
        moved: bytes that it drew from HBM.
        parameters: the machine's nominal values.
    """
    if moved <= 0.0:
        return 0.0
    fixed = parameters.fixed_us(kernel.op, kernel.engine)
    if kernel.engine == "communication":
        fixed += parameters["rank_latency"] * (kernel.comm_ranks - 1)
    transfer = time - fixed
    if transfer > _compute_time(kernel, parameters) * (1 + 1e-6):
        return transfer
    return min(time, moved / hbm_rate(kernel, parameters))


def _compute_time(kernel: Kernel, parameters: "Parameters") -> float:
    """Time on the cores or on the link, us."""
    if kernel.engine == "communication":
        return kernel.comm_bytes / parameters["link_bandwidth"]
    if not kernel.flops:
        return 0.0
    peak = parameters["peak_vector" if kernel.engine == "vector" else f"peak_{kernel.flops_dtype}"]
    return kernel.flops / (peak * min(1.0, (kernel.cores or parameters.cores) / parameters.cores))


def _in_flight(step: "StepResult", readers: Sequence[int]) -> float:
    """A copy counts whole from its first byte until its first reader, or a copy later than that, ends."""
    changes = [(c.start, c.moved) for c in step.copies]
    changes += [(max(c.end, step.ends[k]), -c.moved) for c, k in zip(step.copies, readers, strict=True)]
    most = now = 0.0
    for _, change in sorted(changes):  # at one moment reads come before arrivals
        now += change
        most = max(most, now)
    return most


def _slower(workload: Workload, before: np.ndarray, after: np.ndarray) -> tuple[Slower, ...]:
    loss = after - before
    bad = np.flatnonzero((loss > TAIL_US) & (loss > before * TAIL_PERCENT / 100))
    worst = bad[np.argsort(-loss[bad], kind="stable")][:5]
    return tuple(Slower(workload.kernels[k], float(before[k]), float(after[k])) for k in worst)


def _streams(workload: Workload, before: "StepResult", after: "StepResult") -> tuple[Stream, ...]:
    members: dict[str, list[int]] = {}
    for kernel in workload.kernels:
        members.setdefault(kernel.stream, []).append(kernel.index)
    return tuple(
        Stream(
            name,
            *(max(step.ends[k] for k in kernels) for step in (before, after)),
            *(_union(workload, kernels, step) for step in (before, after)),
        )
        for name, kernels in members.items()
    )


def _union(workload: Workload, kernels: Sequence[int], step: "StepResult") -> float:
    """Length of the union of the kernels' intervals; idle time is no work."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted((step.starts[k], step.ends[k]) for k in kernels if workload.kernels[k].engine != "idle"):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
