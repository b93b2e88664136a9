"""What an analysis finds: records with JSON forms. Times in us, sizes in bytes; measured unless said otherwise."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.figures import Figure

if TYPE_CHECKING:
    import polars as pl

    from models.problems import Problem
    from pipeline.analysis.sequence import Sequence

Words = Mapping[str, str]  # language -> text


@dataclass(frozen=True)
class KernelRef:
    """One place in the step, which may come once per layer.

    Attributes:
        row: index of its row in `Profile.kernels`, in the representative step (in a middle layer).
        name, op_type, stream: as in the profile.
        block: number of the stretch of equal layers, -1 outside of layers.
        layer: the layer in it that `row` belongs to, -1 outside.
        position: which kernel of its layer, from 0; outside, of its stream.
        period: kernels of one layer on its stream, 0 outside.
    """

    row: int
    name: str
    op_type: str
    stream: str
    block: int = -1
    layer: int = -1
    position: int = 0
    period: int = 0

    @property
    def label(self) -> str:
        """`QuantBatchMatmulV3 5/31`: the sixth kernel of 31; `MatMulV2 #1090` outside of layers."""
        place = f"{self.position}/{self.period}" if self.period else f"#{self.position}"
        return f"{self.op_type} {place}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "label": self.label}


@dataclass(frozen=True)
class Hotspot:
    """Equal kernels of a step (same operator, shapes and class), most time first.

    Attributes:
        op_type, shapes: what they are.
        kind: of the operator table.
        calls: per step.
        time_us: per step, all calls.
        share: of the step's kernel time, 0 .. 1.
        each_us: median of one call.
        bytes_low, bytes, bytes_high: per call; None where shapes do not say.
        flops: per call.
        gb_s, tflops: achieved (modelled bytes over measured time).
        hbm_share, peak_share: of the peaks.
        kernel_class, reason: the class and the code of its reason.
        busiest: the pipe that works longest, None without ratios.
        agrees: whether the ratios agree with the shapes, None if either is missing.
        compute: which peak applies.
        row: index of one of them in `Profile.kernels`.
    """

    op_type: str
    shapes: str
    kind: str
    calls: int
    time_us: float
    share: float
    each_us: float
    bytes_low: float | None
    bytes: float | None
    bytes_high: float | None
    flops: float | None
    gb_s: float | None
    tflops: float | None
    hbm_share: float | None
    peak_share: float | None
    kernel_class: str
    reason: str
    busiest: str | None
    agrees: bool | None
    compute: str
    row: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Candidate:
    """A weight that can be prefetched, once per layer.

    Attributes:
        target: the kernel that reads it.
        dependency: the kernel whose output releases the copy.
        nearest: the last kernel after which the suggested size still fits; the dependency if there is none later.
        calls: per step.
        shapes: of the inputs of the target.
        target_us: median time of the target.
        weight_bytes: the whole weight: theoretical `max_size`.
        max_size: suggested.
        limited_by: `coefficient`, `window`, `l2` or `other_copies`: what made it no larger.
        window_us, busy_us: from the end of the dependency to the start of the target, and the part of it in which some
            kernel runs (union of intervals). Medians over the layers.
        fits: bytes that the copy engine brings in the window by itself, modelled.
        room: bytes of L2 that are left for it, modelled.
        link_us: communication in the window.
        passed: kernels in the window that take bandwidth.
        rule: row of the decision table.
        priority: `high` or `low`.
        saving: time of the target that the copy is expected to save per step, modelled.
        pairs: (row of the target, row of the dependency) in `Profile.kernels`, one per layer of the representative
            step, in order of layers.
    """

    target: KernelRef
    dependency: KernelRef
    nearest: KernelRef
    calls: int
    shapes: str
    target_us: float
    weight_bytes: int
    max_size: int
    limited_by: str
    window_us: float
    busy_us: float
    fits: Figure
    room: float
    link_us: float
    passed: tuple[str, ...]
    rule: str
    priority: str
    saving: Figure
    pairs: tuple[tuple[int, int], ...]

    @property
    def coefficient(self) -> float:
        """`max_size` as a share of the theoretical size."""
        return self.max_size / self.weight_bytes if self.weight_bytes else 0.0

    def to_json(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("target", "dependency", "nearest", "fits", "saving"):
            data[name] = data[name].to_json()
        return {**data, "coefficient": self.coefficient, "pairs": [list(p) for p in self.pairs]}


@dataclass(frozen=True)
class NoCandidate:
    """A memory-bound target without a safe window.

    Attributes:
        target, calls, shapes, target_us, weight_bytes: as in `Candidate`.
        code: `windows.NoWindow.code`; `shared`: other copies take the window; `minor`: no more are planned together.
        reason: sentence per language.
    """

    target: KernelRef
    calls: int
    shapes: str
    target_us: float
    weight_bytes: int
    code: str
    reason: Words

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "target": self.target.to_json(), "reason": dict(self.reason)}


@dataclass(frozen=True)
class Chain:
    """Kernels in a row, of one layer and stream, that a SuperKernel could hold.

    Attributes:
        first, last: its ends.
        ops: operator types in order.
        calls: how often it comes per step.
        kernels: in one chain.
        launch_bound: of these, how many the launch decides.
        time_us: from the first start to the last end, median.
        saving: launch time saved per chain, modelled; per step it is `calls` times as much.
        step_share: of the step, nominal, 0 .. 1.
        worth: the saving is at least `limits.scope_share` of the chain's time.
        rows: (first row, last row) in `Profile.kernels` for every layer of the representative step.
    """

    first: KernelRef
    last: KernelRef
    ops: tuple[str, ...]
    calls: int
    kernels: int
    launch_bound: int
    time_us: float
    saving: Figure
    step_share: float
    worth: bool
    rows: tuple[tuple[int, int], ...]

    def to_json(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        ends = {"first": self.first.to_json(), "last": self.last.to_json(), "saving": self.saving.to_json()}
        return {**data, **ends, "rows": [list(r) for r in self.rows]}


@dataclass(frozen=True, eq=False)
class PhaseAnalysis:
    """One kind of step: decode, prefill, ...

    Attributes:
        name: `decode`, `prefill`, `training` or `unknown`.
        why: how it was told.
        rows: rows of the activation that its MatMuls have, weighted by time; None without any.
        found_by: how steps were found: `step_id`, `repetition`, `none`.
        steps: number of steps behind the medians.
        dropped: steps left out as the first.
        different: steps left out because their kernels differ.
        step: time of a step, with 10 and 90 % over the steps.
        busy_us: time in which some kernel runs (union over streams).
        kernel_us: sum of all kernels, which may exceed the step.
        kernels: in a step.
        layers: (stream, layers, kernels of one layer) of each stretch of equal layers.
        classes: class -> share of the kernels' time, 0 .. 1.
        hotspots: all groups of equal kernels, most time first.
        candidates, refused: targets with and without a window, most saved (longest) first.
        chains: for SuperKernel, most saved first.
        in_flight: most bytes that the suggested copies hold in L2 at once, modelled.
        l2_budget: bytes of L2 that may hold weights, modelled.
        numbers: the steps behind the medians, as `Analysis.every_step` counts them.
        sequence: the step itself, for what builds on the analysis (mapping, replay, compare).
    """

    name: str
    why: Words
    rows: int | None
    found_by: str
    steps: int
    dropped: int
    different: int
    step: Figure
    busy_us: float
    kernel_us: float
    kernels: int
    layers: tuple[tuple[str, int, int], ...]
    classes: Mapping[str, float]
    hotspots: tuple[Hotspot, ...]
    candidates: tuple[Candidate, ...]
    refused: tuple[NoCandidate, ...]
    chains: tuple[Chain, ...]
    in_flight: float
    l2_budget: float
    numbers: tuple[int, ...]
    sequence: "Sequence" = field(repr=False)

    @property
    def memory_bound(self) -> tuple[Hotspot, ...]:
        """The memory-bound groups, most time first."""
        return tuple(h for h in self.hotspots if h.kernel_class == "memory")

    def to_json(self, top: int = 10) -> dict[str, Any]:
        return {
            "phase": self.name,
            "why": self.why["en"],
            "rows": self.rows,
            "steps": {
                "found_by": self.found_by,
                "used": self.steps,
                "dropped": self.dropped,
                "different": self.different,
            },
            "step": self.step.to_json(),
            "busy_us": self.busy_us,
            "kernel_us": self.kernel_us,
            "kernels": self.kernels,
            "layers": [{"stream": s, "layers": n, "kernels": p} for s, n, p in self.layers],
            "classes": dict(self.classes),
            "memory_bound": [h.to_json() for h in self.memory_bound[:top]],
            "hotspots": [h.to_json() for h in self.hotspots[:top]],
            "candidates": [c.to_json() for c in self.candidates],
            "no_window": [c.to_json() for c in self.refused],
            "superkernel": [c.to_json() for c in self.chains],
            "in_flight": self.in_flight,
            "l2_budget": self.l2_budget,
        }


@dataclass(frozen=True, eq=False)
class Analysis:
    """Everything that was found in one profile.

    Attributes:
        source, rank, kind: of the profile.
        hardware: name of the machine model.
        kernels: rows in the profile.
        outside: rows that belong to no step.
        phases: decode first.
        problems: warnings: inconsistent shapes, one step only, ...
        signatures: the unique kernels with bytes and FLOPs (`roofline.Signatures.table`).
        keys: signature of every row of the profile; `roofline.per_row` joins both.
        every_step: the kernels of all steps (`steps.Steps.kernels`), for what needs more than medians.
    """

    source: str
    rank: int | None
    kind: str
    hardware: str
    kernels: int
    outside: int
    phases: tuple[PhaseAnalysis, ...]
    problems: "tuple[Problem, ...]"
    signatures: "pl.DataFrame" = field(repr=False)
    keys: "pl.Series" = field(repr=False)
    every_step: "pl.DataFrame" = field(repr=False)

    def phase(self, name: str) -> PhaseAnalysis | None:
        """A phase by name."""
        return next((p for p in self.phases if p.name == name), None)

    def to_json(self, top: int = 10) -> dict[str, Any]:
        return {
            "profile": {"source": self.source, "rank": self.rank, "kind": self.kind, "kernels": self.kernels},
            "hardware": self.hardware,
            "outside_of_steps": self.outside,
            "phases": [p.to_json(top) for p in self.phases],
            "problems": [p.to_json() for p in self.problems],
        }
