"""Warnings about a legal plan: what makes it unlikely to pay on this machine.

Each is told once per target (or for the whole plan), with the worst place as the example.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.paths import Names
from models.workload import Kernel
from pipeline.legality import Flow, Placement
from pipeline.reporter import Reporter
from pipeline.sizes_text import approximate_size
from transforms.plan import Plan

if TYPE_CHECKING:
    from pipeline.simulator.machine import Machine
    from pipeline.simulator.simulate import StepResult

# A dependency that is ready this much later than that of an entry issued after it, us, is worth a warning: smaller
# differences are within what the simulator does not know.
_ORDER_TOLERANCE_US = 1.0


@dataclass(frozen=True)
class Limits:
    """What the warnings need of a machine, at nominal values.

    Attributes:
        l2_bytes: L2 of the die.
        usable_l2: bytes of it that copies and reads can count on.
        hbm: achievable HBM bandwidth, bytes/us.
        peaks: dtype -> operations/us of the whole die.
    """

    l2_bytes: float
    usable_l2: float
    hbm: float
    peaks: Mapping[str, float]

    @classmethod
    def of(cls, machine: "Machine") -> "Limits":
        """The nominal values of a machine model."""
        nominal = machine.nominal()
        return cls(
            nominal.l2_bytes,
            nominal.l2_bytes * nominal["l2_share"],
            nominal.hbm_peak * nominal["hbm_share"],
            {dtype: nominal[f"peak_{dtype}"] for dtype in ("bf16", "int8", "fp32")},
        )


def advise(
    report: Reporter,
    plan: Plan,
    places: Sequence[Placement],
    flow: Flow,
    names: Names,
    limits: Limits,
    baseline: "StepResult | None",
    most_in_flight: int,
) -> None:
    """Add the warnings to the report.

    Args:
        report: where they go.
        plan, places: the plan and where its entries stand.
        flow, names: the step and the model.
        limits: of the machine.
        baseline: a simulated step without copies; without it the order of readiness and the cores are not judged.
        most_in_flight: most bytes copied but not read yet, in program order.
    """
    if most_in_flight > limits.usable_l2:
        report.warn(
            "l2-in-flight",
            "recipe.prefetch.coefficient",
            f"up to {approximate_size(most_in_flight)} are copied but not read yet at one point of the step; L2 has "
            f"{approximate_size(limits.l2_bytes)}, of which about {approximate_size(limits.usable_l2)} can be used "
            "(modelled): early copies are pushed out before they are read",
            "Lower the coefficient, or prefetch fewer targets (recipe.prefetch.only).",
        )
    _not_memory_bound(report, plan, places, flow, names, limits)
    _too_early(report, plan, places, flow, names, limits)
    if baseline is not None:
        _chain_order(report, plan, places, baseline)
        _core_limits(report, baseline)


def _key(target: str, part: str) -> str:
    return f"recipe.prefetch.targets.{target}.{part}"


def _not_memory_bound(
    report: Reporter, plan: Plan, places: Sequence[Placement], flow: Flow, names: Names, limits: Limits
) -> None:
    """The kernel computes longer than it reads: less reading can't make it faster."""
    told: set[str] = set()
    for entry, place in zip(plan.prefetch, places, strict=True):
        kernel = flow.workload.kernels[place.reader]
        compute, read = _times(kernel, limits)
        if entry.target in told or compute <= read:
            continue
        told.add(entry.target)
        report.warn(
            "not-memory-bound",
            _key(entry.target, "weight"),
            f"{kernel.op} of `{names.relative(kernel.module, entry.layer)}` computes for {compute:.1f} us and reads "
            f"for {read:.1f} us (modelled, peak figures): with this batch it is not memory-bound",
            "Leave the target out, or check with a profile.",
        )


def _times(kernel: Kernel, limits: Limits) -> tuple[float, float]:
    """(compute, HBM) time at the machine's peaks, us."""
    peak = limits.peaks.get(kernel.flops_dtype, 0.0)
    read = sum(w.stored_bytes * w.share for w in kernel.weights) + kernel.other_bytes
    return (kernel.flops / peak if peak else 0.0), read / limits.hbm


def _too_early(
    report: Reporter, plan: Plan, places: Sequence[Placement], flow: Flow, names: Names, limits: Limits
) -> None:
    """So much passes through L2 between copy and use that the copy is pushed out, and a nearer dependency exists.

    Every dependency that is not the nearest legal one is early in some sense, and usually on purpose: the copy needs
    the time. So this speaks only where an early copy must be lost (by nominal figures) and a later one need not, or
    where dependency and target are more than one layer apart.
    """
    passed = _filled(flow)
    told: set[str] = set()
    for entry, place in zip(plan.prefetch, places, strict=True):
        if entry.target in told:
            continue
        layer = names.layer_of(entry.dependency)
        target_layer = names.layer_of(entry.weight)
        apart = target_layer - layer if layer is not None and target_layer is not None else 0
        through = passed[place.reader] - passed[place.producer + 1]
        lost = through + entry.max_size > limits.usable_l2
        if apart <= 1 and not lost:
            continue
        better = _later(flow, place, passed, limits.usable_l2 - entry.max_size)
        if better is None:
            continue
        told.add(entry.target)
        why = (
            f"{approximate_size(through)} pass through L2 between the dependency and the target, too much for a copy "
            f"of {approximate_size(entry.max_size)} in about {approximate_size(limits.usable_l2)} of L2 (modelled)"
            if lost
            else f"the dependency is {apart} layers before its target"
        )
        report.warn(
            "dependency-early",
            _key(entry.target, "dependency"),
            f"{why}: the copy is likely to be lost before it is used",
            f"Move it later, e.g. to `{names.relative(better, entry.layer)}`.",
        )


def _later(flow: Flow, place: Placement, passed: Sequence[float], room: float) -> str | None:
    """The earliest legal dependency behind this one from which at most `room` bytes pass; it leaves the most time."""
    best: tuple[int, str] | None = None
    for producer, fqn, _ in flow.legal_before(place.reader):  # nearest first
        if producer <= place.producer or passed[place.reader] - passed[producer + 1] > room:
            break
        if best is None or producer < best[0]:
            best = (producer, fqn)
    return best[1] if best is not None else None


def _filled(flow: Flow) -> list[float]:
    """Bytes that kernels before each index bring into L2 (weights, activations, KV cache), program order."""
    total, sums = 0.0, [0.0]
    for kernel in flow.workload.kernels:
        total += sum(w.stored_bytes * w.share for w in kernel.weights) + kernel.other_bytes
        sums.append(total)
    return sums


def _core_limits(report: Reporter, baseline: "StepResult") -> None:
    """Streams without core limits take all cores and run one kernel after the other, whatever is prefetched."""
    if waiting := baseline.rules.get("cores_busy", 0):
        report.warn(
            "cores-not-shared",
            "deployment.core_limits",
            f"{waiting} kernels of the step wait for cores that a kernel of another stream runs on (modelled): the "
            "streams hardly overlap",
            "Give each stream its part of the die's cores, e.g. deployment.core_limits={main: [16, 32], moe: [8, 16]}.",
        )


def _chain_order(report: Reporter, plan: Plan, places: Sequence[Placement], baseline: "StepResult") -> None:
    """Copies run one after the other in issue order: one that waits holds up all behind it."""
    pairs: dict[tuple[str, str], float] = defaultdict(float)
    ready = [float(baseline.ends[p.producer]) for p in places]
    latest = 0
    for k in range(1, len(ready)):
        wait = ready[latest] - ready[k]
        if wait > _ORDER_TOLERANCE_US:
            pair = (plan.prefetch[latest].target, plan.prefetch[k].target)
            pairs[pair] = max(pairs[pair], wait)
        else:
            latest = k
    for (first, second), wait in pairs.items():
        report.warn(
            "source-order",
            _key(second, "dependency"),
            f"its call comes after that of `{first}`, whose dependency is ready up to {wait:.1f} us later (modelled): "
            "copies run in the order of the calls, so this one waits",
            f"Move the dependency of `{first}` earlier, or leave one of the two out.",
        )
