"""What a forecast says about the SuperKernel scopes of a plan, and about each of the two levers alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.workload import Workload
from pipeline.effects import change
from pipeline.figures import Figure
from pipeline.record import Signal, Text
from pipeline.scope_choice import PROS_AND_CONS
from pipeline.scope_record import ScopeResult, SuperKernelResult
from pipeline.scope_rows import Placed, ScopeMatch, by_name
from pipeline.scope_spans import fused_scope

if TYPE_CHECKING:
    from pipeline.scopes import ScopeResolution
    from pipeline.simulator.copies import Copy
    from pipeline.simulator.forecast import Baseline, Forecast

# A scope that changes the step by less, in per cent, neither pays nor costs.
_TINY = 1e-3
_OFF = {"prefetch": "recipe.prefetch.enabled=false", "superkernel": "recipe.superkernel.enabled=false"}


def scoped_kernels(scopes: "ScopeResolution | None") -> list[int]:
    """Kernels inside any scope."""
    return sorted({k for p in scopes.placed for k in p.span.kernels}) if scopes is not None else []


def superkernel_result(
    workload: Workload,
    scopes: "ScopeResolution",
    forecast: "Forecast",
    copies: Sequence["Copy"] = (),
    baseline: "Baseline | None" = None,
) -> SuperKernelResult | None:
    """Figures of the scopes; None if the plan has none.

    Args:
        workload: one decode step.
        scopes: of the plan.
        forecast: of the whole plan.
        copies: of the plan, to try each lever alone.
        baseline: the simulator's; without it nothing is tried alone. All its draws make each band.
    """
    if not scopes.placed:
        return None
    both = bool(copies) and baseline is not None
    everything = [fused_scope(p.scope, p.span) for p in scopes.placed]
    prefetch = superkernel = None
    if both and baseline is not None:
        (prefetch,) = baseline.evaluate_many([copies], baseline.draws)
        (superkernel,) = baseline.evaluate_many([[]], baseline.draws, everything)
    groups = by_name(scopes.placed)
    rows = [_row(workload, row, groups[row.name], forecast, baseline) for row in scopes.matches]
    return SuperKernelResult(
        strategy=scopes.strategy,
        about=PROS_AND_CONS[scopes.strategy],
        why=scopes.choice.why if scopes.choice is not None else None,
        scopes=rows,
        prefetch_alone=prefetch,
        superkernel_alone=superkernel if both else forecast.gain,
        candidates=scopes.choice.candidates if scopes.choice is not None else (),
    )


def scope_signals(found: SuperKernelResult, gain: Figure) -> list[Signal]:
    """Failure signals of the scopes and the next adjustment.

    Args:
        found: the scopes.
        gain: of the whole plan.
    """
    signals = []
    for scope in found.scopes:
        if scope.gain_alone is not None and scope.gain_alone.value < -_TINY:
            cause = (
                "streams run one after the other" if scope.serialises else "synchronisation costs more than launches"
            )
            cause_zh = "多流被串行化" if scope.serialises else "同步开销大于节省的下发开销"
            signals.append(
                Signal(
                    "scope_slower",
                    scope.name,
                    Text(
                        f"with scope {scope.name} alone the step gets {-scope.gain_alone.value:.2f} % slower: {cause}",
                        f"仅启用 scope {scope.name} 时单步变慢 {-scope.gain_alone.value:.2f} %:{cause_zh}",
                    ),
                    Text("one scope per stream, or leave it out", "每个流单独划分 scope,或去掉该 scope"),
                    "recipe.superkernel.strategy=auto",
                )
            )
    alone = {"prefetch": found.prefetch_alone, "superkernel": found.superkernel_alone}
    if found.prefetch_alone is not None:
        for lever, figure in alone.items():
            if figure is not None and figure.value > gain.value + _TINY:
                other = "superkernel" if lever == "prefetch" else "prefetch"
                signals.append(
                    Signal(
                        "lever_hinders",
                        None,
                        Text(
                            f"{lever} alone gains {figure.value:+.2f} %, both together {gain.value:+.2f} %: they "
                            "hinder each other",
                            f"仅 {lever} 收益 {figure.value:+.2f} %,两者同时 {gain.value:+.2f} %:相互妨碍",
                        ),
                        Text(f"switch {other} off", f"关闭 {other}"),
                        _OFF[other],
                    )
                )
    return signals


def _row(
    workload: Workload,
    row: ScopeMatch,
    members: Sequence[Placed],
    forecast: "Forecast",
    baseline: "Baseline | None",
) -> ScopeResult:
    kernels = [k for p in members for k in p.span.kernels]
    layers = max(1, workload.layers)
    before, after = (
        sum(step.ends[k] - step.starts[k] for k in kernels) / layers
        for step in (forecast.baseline_step, forecast.optimised_step)
    )
    alone = None
    if baseline is not None:
        scopes = [fused_scope(p.scope, p.span) for p in members]
        (alone,) = baseline.evaluate_many([[]], baseline.draws, scopes)
    return ScopeResult(
        name=row.name,
        label=row.label,
        first=row.first,
        last=row.last,
        options=row.options,
        count=row.matched,
        kernels=row.kernels,
        fusable_share=100 * row.share,
        launches_saved=row.launches_saved,
        superkernels=row.superkernels,
        streams=row.streams,
        serialises=row.serialises,
        cut_by=row.cut_by,
        baseline=Figure(before, "us"),
        optimized=Figure(after, "us"),
        change=Figure(change(before, after), "%"),
        launch_saving=row.launch_saving,
        gain_alone=alone,
    )
