"""The performance rung of a modelled trial: figures, targets, checklist, failure signals, verdict."""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from models.loading import LoadedModel
from models.workload import Workload
from pipeline.checklist import make_checklist, new_tails
from pipeline.effects import Effect, Effects, change, effects
from pipeline.figures import Figure
from pipeline.hotspots import hotspots
from pipeline.legality import Flow, Placement
from pipeline.record import Assessment, Rung, Signal, TargetResult, Text
from pipeline.scope_effects import scope_signals, scoped_kernels, superkernel_result
from pipeline.scope_record import SuperKernelResult
from pipeline.scope_spans import fused_scope
from pipeline.signals import SIGNAL_ORDER, Setting, plan_signals, target_signal
from pipeline.sizes_text import approximate_size
from pipeline.verdict import modelled_verdict
from pipeline.windows import placements_of
from transforms.plan import Plan

if TYPE_CHECKING:
    from pipeline.resolve import TargetMatch
    from pipeline.scopes import ScopeResolution
    from pipeline.simulator.copies import Copy
    from pipeline.simulator.forecast import Baseline, Forecast
    from pipeline.simulator.fusion import FusedScope
    from pipeline.simulator.machine import Machine

MIB = float(1 << 20)
# Draws of the band of each target alone and left out: a wide net, cheap enough for every trial of a sweep.
ALONE_DRAWS = 32


def assess(
    workload: Workload,
    plan: Plan,
    matches: "Sequence[TargetMatch]",
    machine: "Machine",
    forecast: "Forecast",
    *,
    baseline: "Baseline | None" = None,
    placements: Sequence[Placement] | None = None,
    loaded: LoadedModel | None = None,
    numerics: Rung | None = None,
    alone_draws: int = ALONE_DRAWS,
    scopes: "ScopeResolution | None" = None,
) -> Assessment:
    """Judge a plan by its forecast.

    Args:
        workload: one decode step.
        plan: the plan.
        matches: the resolver's rows, for coefficients and the names that the user wrote.
        machine: where it runs, as the forecast had it.
        forecast: of the plan's copies, in plan order.
        baseline: the simulator's baseline, to try each target alone and left out; without it these are None.
        placements: of the plan's entries; found here if None.
        loaded: the full-size model, for shapes and for other dependencies to propose.
        numerics: result of that rung.
        alone_draws: draws of the bands of each target alone and left out; 0: no bands (a draw of every target costs as
            much as twice as many draws of the forecast).
        scopes: the plan's SuperKernel scopes; the forecast was made with them.
    """
    places = list(placements) if placements is not None else placements_of(plan, workload)
    scoped = scoped_kernels(scopes)
    found = effects(workload, plan, places, forecast, machine.nominal(), scoped)
    fused = [fused_scope(p.scope, p.span) for p in scopes.placed] if scopes is not None else []
    alone, without = _one_by_one(plan, places, found, baseline, forecast, alone_draws, fused)
    superkernel = None
    if scopes is not None:
        copies = _copies(plan, places)
        superkernel = superkernel_result(workload, scopes, forecast, copies, baseline)
    rows = {m.target: m for m in matches}
    flow = Flow(workload)
    settings = {
        e.target: _setting(e, plan, rows.get(e.target), places, flow, loaded, alone, without) for e in found.targets
    }
    tails = new_tails(found, forecast.baseline.value)
    per_target = {e.target: target_signal(e, settings[e.target]) for e in found.targets}
    signals = plan_signals(found, forecast.gain, forecast.baseline.value, tails)
    signals += [s for s in per_target.values() if s is not None]
    if superkernel is not None:
        signals += scope_signals(superkernel, forecast.gain)
    signals.sort(key=lambda s: SIGNAL_ORDER.get(s.id, 99))
    checklist = make_checklist(found, forecast.baseline, forecast.optimised, forecast.gain, numerics)
    return Assessment(
        metrics={**_metrics(workload, plan, forecast, found), **_scope_metrics(superkernel, scoped, forecast)},
        targets=[
            _target(e, plan, rows.get(e.target), settings[e.target], per_target[e.target], loaded)
            for e in found.targets
        ],
        verdict=modelled_verdict(
            forecast.gain, checklist, signals, numerics, empty=not plan.prefetch and not plan.scopes
        ),
        checklist=checklist,
        hotspots=hotspots(workload, plan, forecast.baseline_step, machine.nominal()),
        superkernel=superkernel,
    )


def _scope_metrics(found: SuperKernelResult | None, scoped: Sequence[int], forecast: "Forecast") -> dict[str, Figure]:
    if found is None:
        return {}
    before, after = (
        sum(step.ends[k] - step.starts[k] for k in scoped) for step in (forecast.baseline_step, forecast.optimised_step)
    )
    kernels = sum(s.kernels for s in found.scopes)
    fusable = sum(s.fusable_share * s.kernels for s in found.scopes) / max(1, kernels)
    metrics = {
        "baseline.scoped_kernels": Figure(before, "us"),
        "optimized.scoped_kernels": Figure(after, "us"),
        "delta.scoped_kernels": Figure(change(before, after), "%"),
        "superkernel.scopes": Figure(sum(s.count for s in found.scopes), "scopes"),
        "superkernel.kernels": Figure(kernels, "kernels"),
        "superkernel.fusable": Figure(fusable, "%"),
        "superkernel.launches_saved": Figure(sum(s.launches_saved for s in found.scopes), "launches"),
    }
    for name, figure in (("prefetch", found.prefetch_alone), ("superkernel", found.superkernel_alone)):
        if figure is not None and found.prefetch_alone is not None:
            metrics[f"delta.{name}_alone"] = figure
    return metrics


def _copies(plan: Plan, places: Sequence[Placement]) -> "list[Copy]":
    from pipeline.simulator.copies import Copy

    return [
        Copy(p.weight, place.producer, p.max_size, p.offset) for p, place in zip(plan.prefetch, places, strict=True)
    ]


def _metrics(workload: Workload, plan: Plan, forecast: "Forecast", found: Effects) -> dict[str, Figure]:
    limit = forecast.limit.value
    total = sum(p.max_size for p in plan.prefetch) / MIB
    return {
        "baseline.step": forecast.baseline,
        "optimized.step": forecast.optimised,
        "delta.step": forecast.gain,
        "baseline.throughput": _throughput(workload.tokens, forecast.baseline),
        "optimized.throughput": _throughput(workload.tokens, forecast.optimised),
        "physical_limit": forecast.limit,
        "baseline.target_kernels": Figure(found.target_baseline, "us"),
        "optimized.target_kernels": Figure(found.target_optimized, "us"),
        "delta.target_kernels": Figure(change(found.target_baseline, found.target_optimized), "%"),
        "baseline.windows": Figure(found.window_baseline, "us"),
        "optimized.windows": Figure(found.window_optimized, "us"),
        "delta.windows": Figure(change(found.window_baseline, found.window_optimized), "%"),
        "baseline.above_limit": _above(forecast.baseline, limit),
        "optimized.above_limit": _above(forecast.optimised, limit),
        "prefetch.per_layer": Figure(total / max(1, workload.layers), "MiB"),
        "prefetch.total": Figure(total, "MiB"),
        "prefetch.in_flight": Figure(found.in_flight / MIB, "MiB"),
    }


def _throughput(tokens: float, step: Figure) -> Figure:
    """Tokens per second of this die; the ends of the band change places."""

    def rate(us: float | None) -> float | None:
        return None if us is None else tokens / us * 1e6 if us > 0 else 0.0

    return Figure(rate(step.value) or 0.0, "tokens/s", rate(step.high), rate(step.low), step.provenance)


def _above(step: Figure, limit: float) -> Figure:
    """How far the step is above the physical limit, % of the limit."""

    def share(us: float | None) -> float | None:
        return None if us is None else 100.0 * (us / limit - 1.0) if limit > 0 else 0.0

    return Figure(share(step.value) or 0.0, "%", share(step.low), share(step.high), step.provenance)


def _one_by_one(
    plan: Plan,
    places: Sequence[Placement],
    found: Effects,
    baseline: "Baseline | None",
    forecast: "Forecast",
    draws: int,
    scopes: "Sequence[FusedScope]",
) -> tuple[dict[str, Figure], dict[str, Figure]]:
    """Gain with each target alone (and no scopes), and what the whole plan loses without it.

    Both are paired with the baseline's draws.
    """
    names = [e.target for e in found.targets]
    if baseline is None or not names:
        return {}, {}
    if len(names) == 1 and not scopes:
        return {names[0]: forecast.gain}, {}
    copies = [(p.target, copy) for p, copy in zip(plan.prefetch, _copies(plan, places), strict=True)]
    plans = [[c for target, c in copies if target == name] for name in names]
    rest = [[c for target, c in copies if target != name] for name in names]
    draws = min(draws, baseline.draws)
    before = np.concatenate(([baseline.step.time], baseline.times[:draws]))
    some = slice(0, 1 + draws)
    times = np.concatenate((baseline.run_draws(plans, some), baseline.run_draws(rest, some, scopes)))
    gains = 100.0 * (before - times) / np.where(before > 0.0, before, 1.0)
    whole = np.concatenate(([forecast.gain.value], forecast.gain_draws[:draws]))
    alone = {name: _banded(row, "%") for name, row in zip(names, gains[: len(names)], strict=True)}
    return alone, {name: _banded(whole - row, "pp") for name, row in zip(names, gains[len(names) :], strict=True)}


def _banded(values: np.ndarray, unit: str) -> Figure:
    """A figure from its nominal value and its draws; the band is that of forecasts, 10 to 90 %, nominal included."""
    from pipeline.simulator.forecast import BAND

    value = float(values[0])
    if len(values) == 1:
        return Figure(value, unit)
    low, high = np.quantile(values[1:], BAND)
    return Figure(value, unit, min(value, float(low)), max(value, float(high)))


def _setting(
    effect: Effect,
    plan: Plan,
    row: "TargetMatch | None",
    places: Sequence[Placement],
    flow: Flow,
    loaded: LoadedModel | None,
    alone: Mapping[str, Figure],
    without: Mapping[str, Figure],
) -> Setting:
    first = plan.prefetch[effect.entries[0]]
    place = places[effect.entries[0]]
    return Setting(
        coefficient=row.coefficient if row is not None else Decimal(first.max_size) / first.theoretical_size,
        theoretical_size=first.theoretical_size,
        max_size=first.max_size,
        earlier=_other_dependency(flow, place, first.layer, loaded, earlier=True),
        later=_other_dependency(flow, place, first.layer, loaded, earlier=False),
        alone=alone.get(effect.target),
        without=without.get(effect.target),
    )


def _other_dependency(
    flow: Flow, place: Placement, layer: int, loaded: LoadedModel | None, earlier: bool
) -> Callable[[], str | None]:
    """The nearest legal dependency before (or behind) the present one, in the recipe's words."""

    def find() -> str | None:
        if loaded is None:
            return None
        from models.paths import Names

        names = Names(loaded.module, loaded.root, loaded.layers)
        legal = flow.legal_before(place.reader)  # nearest to the target first
        if earlier:
            found = next((fqn for producer, fqn, _ in legal if producer < place.producer), None)
        else:
            found = next((fqn for producer, fqn, _ in reversed(legal) if producer > place.producer), None)
        return names.relative(found, layer) if found is not None else None

    return find


def _target(
    effect: Effect,
    plan: Plan,
    row: "TargetMatch | None",
    setting: Setting,
    signal: Signal | None,
    loaded: LoadedModel | None,
) -> TargetResult:
    first = plan.prefetch[effect.entries[0]]
    dependency = first.dependency + (":input" if first.port == "input" else "")
    return TargetResult(
        name=effect.target,
        weight=row.weight if row is not None else first.weight,
        dependency=row.dependency if row is not None else dependency,
        example=first.weight,
        count=len(effect.entries),
        op=effect.op,
        theoretical_size=first.theoretical_size,
        max_size=first.max_size,
        offset=first.offset,
        basis=_basis(first.weight, setting, loaded),
        baseline=Figure(effect.baseline, "us"),
        optimized=Figure(effect.optimized, "us"),
        memory_bound=Figure(100 * effect.memory_bound, "%"),
        window=Figure(effect.window, "us"),
        window_change=Figure(effect.window_change, "%"),
        copy_time=Figure(effect.copy_time, "us"),
        covered=Figure(100 * effect.covered, "%"),
        used=Figure(100 * effect.useful, "%"),
        gain_alone=setting.alone,
        gain_without=setting.without,
        why=_why(effect, first.max_size),
        next=signal.adjustment if signal is not None else None,
    )


def _basis(weight: str, setting: Setting, loaded: LoadedModel | None) -> str:
    """`[6144, 1536] bf16, 18 MiB x 0.5 = 9 MiB`."""
    shape = ""
    if loaded is not None:
        parameter = loaded.module.get_parameter(weight)
        shape = f"{list(parameter.shape)} {str(parameter.dtype).removeprefix('torch.')}, "
    size = approximate_size(setting.theoretical_size)
    if setting.coefficient is None:
        return f"{shape}{size}; max_size {approximate_size(setting.max_size)} as given"
    return f"{shape}{size} x {setting.coefficient} = {approximate_size(setting.max_size)}"


def _why(effect: Effect, max_size: int) -> Text:
    """Why this target and this window, from the nominal baseline."""
    ops = list(dict.fromkeys(effect.window_ops))
    shown = ", ".join(ops[:5]) + (", ..." if len(ops) > 5 else "")
    share = f"{100 * effect.memory_bound:.0f} %"
    en = (
        f"HBM transfer takes {share} of the {effect.baseline:.1f} us of {effect.op}; the window is "
        f"{effect.window:.1f} us ({shown or 'no kernel in it'}), the copy of {approximate_size(max_size)} takes "
        f"{effect.copy_time:.1f} us from its release; {effect.covered:.0%} of it arrives before the target starts"
    )
    zh = (
        f"{effect.op} 的 {effect.baseline:.1f} us 中 HBM 传输占 {share};窗口 {effect.window:.1f} us"
        f"({shown or '其中没有算子'}),拷贝 {approximate_size(max_size)} 自释放起需 {effect.copy_time:.1f} us,"
        f"目标开始前到达 {effect.covered:.0%}"
    )
    return Text(en, zh)
