"""What one trial found: plain records that reports, tables and the JSON output read.

Nothing here computes; `assess`, `verify` and `verdict` fill these in, `report` and the command line print them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from models.problems import Problem
from pipeline.figures import Figure, Provenance
from pipeline.scope_record import SuperKernelResult
from transforms.plan import Plan

Language = Literal["en", "zh"]
RungStatus = Literal["passed", "failed", "not_run", "could_not_check"]
Outcome = Literal["improved", "undecided", "worse", "no_significant_difference", "degraded", "failed", "not_run"]
Answer = Literal["yes", "no", "unknown"]

# The rungs of the verification ladder, in order.
RUNGS = ("compiles", "numerics", "graph", "performance")


@dataclass(frozen=True)
class Text:
    """One sentence in both report languages."""

    en: str
    zh: str

    def get(self, language: str) -> str:
        """The sentence in `en` or `zh`."""
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True)
class Rung:
    """One step of the verification ladder.

    Attributes:
        status: `passed`, `failed`, `not_run` or `could_not_check`.
        detail: what was checked, or the first deviation found, or why it did not run.
        zh: `detail` in Chinese; "" if there is none.
    """

    status: RungStatus
    detail: str
    zh: str = ""

    def get(self, language: str) -> str:
        """`detail` in `en` or `zh`."""
        return self.zh if language == "zh" and self.zh else self.detail

    def to_json(self) -> dict[str, str]:
        return {"status": self.status, "detail": self.detail}


@dataclass(frozen=True)
class TargetResult:
    """What became of one target of the recipe. Times are means over its kernels, in us.

    Attributes:
        name: the target's name in the recipe.
        weight, dependency: as the recipe writes them.
        example: FQN of the first weight.
        count: prefetches of this target in one step.
        op: operator of the kernels that read the weight.
        theoretical_size, max_size, offset: bytes, of the example.
        basis: what the size follows from, e.g. `16 MiB x 0.5`.
        baseline, optimized: time of one target kernel, us.
        memory_bound: share of the baseline kernel's time in which HBM sets the pace, %.
        window: time between the dependency and the target in the baseline, us.
        window_change: change of the time of the kernels in the window, % of baseline, positive = faster.
        copy_time: time of one copy from its release to its last byte, waiting for the copies before it included, us.
        covered: share of the copied bytes that had arrived when the target started, %.
        used: share of the copied bytes that the target found in L2, %.
        gain_alone: gain of the step with only this target, %.
        gain_without: what the whole plan's gain loses if only this target is left out, percentage points: below 0 the
            plan is better without it.
        why: why this target and this window, in words.
        next: the adjustment that follows for this target, or None.
    """

    name: str
    weight: str
    dependency: str
    example: str
    count: int
    op: str
    theoretical_size: int
    max_size: int
    offset: int
    basis: str
    baseline: Figure
    optimized: Figure
    memory_bound: Figure
    window: Figure
    window_change: Figure
    copy_time: Figure
    covered: Figure
    used: Figure
    gain_alone: Figure | None
    gain_without: Figure | None
    why: Text
    next: Text | None = None

    def to_json(self, language: str = "en") -> dict[str, Any]:
        data = asdict(self)
        data["why"] = self.why.get(language)
        data["next"] = self.next.get(language) if self.next else None
        return data


@dataclass(frozen=True)
class ChecklistItem:
    """One of the five points to check after a change.

    Attributes:
        id: `target_faster`, `critical_path`, `window_stable`, `no_new_tail` or `same_numbers`.
        question: the point, as a question.
        answer: `yes` is good, `no` is bad, `unknown` was not checked.
        detail: the figures behind the answer.
        counts: it is one of the four of which at least two must hold.
        provenance: where the figures come from.
    """

    id: str
    question: Text
    answer: Answer
    detail: Text
    counts: bool = True
    provenance: Provenance = "modelled"

    def to_json(self, language: str = "en") -> dict[str, Any]:
        return {
            "id": self.id,
            "question": self.question.get(language),
            "answer": self.answer,
            "detail": self.detail.get(language),
            "counts": self.counts,
            "provenance": self.provenance,
        }


@dataclass(frozen=True)
class Verdict:
    """The outcome and why.

    Attributes:
        outcome: modelled `improved` / `undecided` / `worse`; measured `improved` / `no_significant_difference` /
            `degraded`; `failed` if a rung below performance failed; `not_run`.
        reason: one sentence, with the figures and whether they are modelled.
        success: the two-of-four rule holds; None if fewer than two points could be answered, or the plan is empty.
        met: ids of the points (of four) that hold.
        signals: the failure signals seen and the adjustment for each.
        provenance: `measured` or `modelled`.
    """

    outcome: Outcome
    reason: Text
    success: bool | None = None
    met: tuple[str, ...] = ()
    signals: tuple["Signal", ...] = ()
    provenance: Provenance = "modelled"

    def to_json(self, language: str = "en") -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "reason": self.reason.get(language),
            "provenance": self.provenance,
            "success": self.success,
            "met": list(self.met),
            "signals": [s.to_json(language) for s in self.signals],
        }


@dataclass(frozen=True)
class Signal:
    """A failure signal and what to change next.

    Attributes:
        id: `no_gain_window_slower`, `window_slower`, `plan_better_without`, `target_not_faster`, `wait_moved`,
            `new_tail`; `keep` and `grow` are no failures: the plan needs the target, or there is room.
        target: the recipe's target it is about, None if about the whole plan.
        seen: what was seen.
        adjustment: what to change, from what to what.
        override: the command-line override that does it, or "".
    """

    id: str
    target: str | None
    seen: Text
    adjustment: Text
    override: str = ""

    def to_json(self, language: str = "en") -> dict[str, Any]:
        return {
            "id": self.id,
            "target": self.target,
            "seen": self.seen.get(language),
            "adjustment": self.adjustment.get(language),
            "override": self.override,
        }


@dataclass(frozen=True)
class Assessment:
    """Everything that the performance rung found.

    Attributes:
        metrics: dotted name -> figure: `baseline.step`, `optimized.step`, `delta.step`, `baseline.throughput`,
            `optimized.throughput`, `physical_limit`, and `baseline.target_kernels`, `optimized.target_kernels`,
            `delta.target_kernels`, the same three of `windows`, `baseline.above_limit`, `optimized.above_limit` (%),
            `prefetch.per_layer`, `prefetch.in_flight`, `prefetch.total` (MiB). With SuperKernel scopes also the three
            of `scoped_kernels`, `superkernel.scopes`, `superkernel.kernels`, `superkernel.fusable` (%),
            `superkernel.launches_saved`, and with both levers `delta.prefetch_alone` and `delta.superkernel_alone`.
            `delta.*` is % of baseline, positive = faster.
        targets: one per target of the recipe, in recipe order.
        verdict: the outcome.
        checklist: the five points.
        hotspots: where the baseline's time goes, longest first.
        superkernel: the SuperKernel lever; None if the plan has no scopes.
    """

    metrics: Mapping[str, Figure]
    targets: Sequence[TargetResult]
    verdict: Verdict
    checklist: Sequence[ChecklistItem]
    hotspots: Sequence["Hotspot"] = ()
    superkernel: SuperKernelResult | None = None


@dataclass(frozen=True)
class Hotspot:
    """Kernels of one operator at one place of all layers, in the baseline.

    Attributes:
        op: the operator.
        module: the module that launches them, the layer index as `{i}`.
        count: kernels in a step.
        time: their summed time, us.
        share: of the summed time of all kernels, %.
        memory_bound: share of their time in which HBM sets the pace, %.
        target: the recipe's target they read, "" if none.
    """

    op: str
    module: str
    count: int
    time: Figure
    share: Figure
    memory_bound: Figure
    target: str = ""


@dataclass
class TrialRecord:
    """One trial, whole.

    Attributes:
        key: the trial key.
        output_dir: where its files are.
        status: `ok`; `failed` if a rung that was asked for failed or could not be checked, or the trial crashed.
        config: the resolved configuration, plain mappings.
        overrides: the command line's overrides.
        plan: what was realised.
        matches: the resolver's `TargetMatch` records.
        problems: warnings of the resolver (errors refuse the run before there is a record).
        verification: rung -> result, in the order of `RUNGS`.
        calls_planned, calls_observed, scopes_planned, scopes_observed: of one decode step of the tiny model, or None.
        assessment: metrics, targets, verdict, checklist; None if the performance rung did not run.
        diff: the source change, unified; "" for `wrap`.
        changed_files: the files that the diff touches.
        reused: what was taken over from an earlier trial instead of computed.
        rerun: the command that runs this trial again.
        language: language of the texts in the JSON and the report.
        transform: `source` or `wrap`.
        seconds: stage -> wall time (not part of the JSON: it changes from run to run).
        error: the traceback's last line if the trial crashed.
    """

    key: str
    output_dir: str
    status: Literal["ok", "failed"]
    config: Mapping[str, Any]
    plan: Plan
    overrides: Sequence[str] = ()
    matches: Sequence[Any] = ()
    problems: Sequence[Problem] = ()
    verification: dict[str, Rung] = field(default_factory=dict)
    calls_planned: int | None = None
    calls_observed: int | None = None
    scopes_planned: int | None = None
    scopes_observed: int | None = None
    assessment: Assessment | None = None
    diff: str = ""
    changed_files: Sequence[str] = ()
    reused: Sequence[str] = ()
    rerun: str = ""
    language: Language = "en"
    transform: str = "source"
    seconds: dict[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def verdict(self) -> Verdict:
        """The assessment's verdict; `failed` or `not_run` with the reason if there is none."""
        if self.assessment is not None:
            return self.assessment.verdict
        for name, rung in self.verification.items():
            if rung.status == "failed":
                return Verdict("failed", Text(f"rung {name} failed: {rung.detail}", f"{name} 未通过:{rung.get('zh')}"))
        if self.error:
            return Verdict("failed", Text(self.error, self.error))
        return Verdict("not_run", Text("the performance rung did not run", "未执行性能验证"))

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `run`: paths, rungs, verdict, nested metrics, targets, counts of calls, plan, problems."""
        found = self.assessment
        return {
            "output_dir": self.output_dir,
            "status": self.status,
            "key": self.key,
            "verification": {name: rung.to_json() for name, rung in self.verification.items()},
            "verdict": self.verdict.to_json(self.language),
            "metrics": nested(found.metrics) if found else {},
            "targets": [t.to_json(self.language) for t in found.targets] if found else [],
            "superkernel": found.superkernel.to_json(self.language) if found and found.superkernel else None,
            "checklist": [c.to_json(self.language) for c in found.checklist] if found else [],
            "calls_planned": self.calls_planned,
            "calls_observed": self.calls_observed,
            "scopes_planned": self.scopes_planned,
            "scopes_observed": self.scopes_observed,
            "plan": {"hash": self.plan.hash, "prefetch": len(self.plan.prefetch), "scopes": len(self.plan.scopes)},
            "problems": [p.to_json() for p in self.problems],
            "reused": list(self.reused),
            **({"error": self.error} if self.error else {}),
        }


def nested(metrics: Mapping[str, Figure]) -> dict[str, Any]:
    """`{"baseline.step": figure}` -> `{"baseline": {"step": {...}}}`."""
    result: dict[str, Any] = {}
    for name, figure in metrics.items():
        *parents, leaf = name.split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = figure.to_json()
    return result
