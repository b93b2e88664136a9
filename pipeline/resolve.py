"""From a recipe to a plan: which weights of this model, after which tensors, how many bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from statistics import median
from typing import TYPE_CHECKING

from models.paths import Names
from models.problems import Problem
from models.workload import Workload
from pipeline.advice import Limits, advise
from pipeline.figures import Figure
from pipeline.legality import Placement
from pipeline.planned_sizes import PlannedSizes
from pipeline.preconditions import Places, check_preconditions
from pipeline.recipe import Recipe, Target, check_coefficient, check_mode, check_model
from pipeline.reporter import Reporter
from pipeline.scope_rows import ScopeMatch
from pipeline.scopes import ScopeResolution, resolve_scopes
from pipeline.target_resolver import Entry, Resolvable, TargetResolver
from pipeline.windows import in_flight
from transforms.plan import Plan, Prefetch

if TYPE_CHECKING:
    from pipeline.simulator.machine import Machine
    from pipeline.simulator.simulate import StepResult


@dataclass(frozen=True)
class TargetMatch:
    """One row of the match table.

    Attributes:
        target: name in the recipe.
        weight, dependency: as written, the dependency with `:input` if so.
        matched: entries of the plan that come from this target.
        skipped: layers (or names) for which weight or dependency does not exist.
        example: FQN of the first weight, "" if none matched.
        theoretical_size: bytes of the whole local weight; the largest where layers differ.
        max_size: bytes copied; the largest where layers differ.
        offset: first byte.
        coefficient: share of the weight in force; None where an explicit size beats it.
        l2_share: `max_size` / L2 of the die; None without a machine.
        in_flight: most bytes that wait in L2 in program order while a copy of this target waits.
        window: time from the dependency's end to the target's start in the baseline, us: the median over layers, with
            the shortest and the longest as low and high; None without a machine.
        crosses: operators between dependency and target of the example, in program order.
    """

    target: str
    weight: str
    dependency: str
    matched: int
    skipped: int
    example: str = ""
    theoretical_size: int = 0
    max_size: int = 0
    offset: int = 0
    coefficient: Decimal | None = None
    l2_share: float | None = None
    in_flight: int = 0
    window: Figure | None = None
    crosses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resolution:
    """What a recipe means for a model.

    Attributes:
        plan: what could be resolved; complete only if no problem is an error.
        matches: one row per active target, in recipe order.
        problems: all of them, warnings included.
        placements: of each entry of the plan.
        in_flight: most bytes copied but not yet read at any point, in program order.
        scopes: what `recipe.superkernel` means; its scopes are those of the plan.
        sizes: bytes of every weight, to resolve the same recipe on the tiny model.
    """

    plan: Plan
    matches: tuple[TargetMatch, ...]
    problems: tuple[Problem, ...]
    placements: tuple[Placement, ...] = field(default=(), repr=False)
    in_flight: int = 0
    scopes: ScopeResolution = field(default_factory=ScopeResolution)
    sizes: PlannedSizes = field(default_factory=PlannedSizes, repr=False)

    @property
    def scope_matches(self) -> tuple[ScopeMatch, ...]:
        """One row per name of a scope, in execution order."""
        return self.scopes.matches


def resolve(
    recipe: Recipe,
    loaded: Resolvable,
    workload: Workload,
    machine: "Machine | None" = None,
    sizes: PlannedSizes | None = None,
    exe_mode: str | None = None,
    baseline: "StepResult | None" = None,
    strategy: str | None = None,
    places: Places | None = None,
) -> Resolution:
    """Apply a recipe to a model.

    Args:
        recipe: as parsed; it may lack targets that had errors.
        loaded: the model; its trace is `workload`.
        workload: one decode step.
        machine: for shares of L2, windows and the warnings that need peaks.
        sizes: byte counts of the full-size plan when resolving on the tiny model.
        exe_mode: `runtime.exe_mode`; the model's own if None.
        baseline: a simulated step without copies at the machine's nominal values; simulated here if None.
        strategy: of SuperKernel, for the tiny model: what `auto` chose at full size.
        places: file and line of the keys outside the recipe, for messages.

    Returns:
        Plan, match table and all problems. User errors never raise.
    """
    mode = exe_mode or loaded.exe_mode
    report = recipe.reporter()
    report.problems += check_model(recipe, loaded.spec.name)
    report.problems += check_mode(recipe, mode, loaded.deployment.multi_stream)
    if sizes is None:
        report.problems += check_coefficient(recipe)
        generation = machine.generation if machine is not None else None
        report.problems += check_preconditions(recipe, mode, generation, loaded.module, places)
    resolver = TargetResolver(recipe, loaded, workload, report, sizes)
    entries: list[Entry] = []
    found: list[tuple[Target, list[Entry], int]] = []
    for target in recipe.prefetch.active:
        own, skipped = resolver.target(target)
        found.append((target, own, skipped))
        entries += own
    # Stable: targets with the same dependency keep the recipe's order.
    entries.sort(key=lambda e: e.place.event)
    _refuse_overlaps(report, entries, resolver.names)
    if recipe.prefetch.active and not entries and sizes is None and not _any_error(report):
        _nothing_left(report, recipe, loaded, resolver.names)
    waiting, most = in_flight([e.place for e in entries], [e.prefetch.max_size for e in entries], len(workload.kernels))
    amounts = {id(entry): amount for entry, amount in zip(entries, waiting, strict=True)}
    if machine is not None and baseline is None and entries:
        from pipeline.simulator.simulate import simulate

        baseline = simulate(workload, [], machine.nominal())
    issued = [(e.prefetch.target, e.place.event) for e in entries]
    scopes = resolve_scopes(
        recipe,
        loaded,
        resolver.names,
        workload,
        report,
        issued,
        chosen=strategy,
        tiny=sizes is not None,
        machine=machine,
    )
    plan = Plan(loaded.spec.name, recipe.name, mode, tuple(e.prefetch for e in entries), scopes.scopes)
    placed = tuple(e.place for e in entries)
    limits = Limits.of(machine) if machine is not None else None
    if limits is not None and sizes is None:
        advise(report, plan, placed, resolver.flow, resolver.names, limits, baseline, most)
    matches = tuple(_row(resolver, target, own, skipped, amounts, limits, baseline) for target, own, skipped in found)
    planned = PlannedSizes.of(resolver.names, plan.prefetch)
    return Resolution(plan, matches, tuple(report.problems), placed, most, scopes, planned)


def _row(
    resolver: TargetResolver,
    target: Target,
    own: list[Entry],
    skipped: int,
    waiting: Mapping[int, int],
    limits: Limits | None,
    baseline: "StepResult | None",
) -> TargetMatch:
    """The target's row of the match table."""
    dependency = target.dependency.text + (":input" if target.port == "input" else "")
    row = TargetMatch(target.name, target.weight.text, dependency, len(own), skipped, offset=target.offset)
    if not own:
        return row
    max_size = max(e.prefetch.max_size for e in own)
    first = own[0]
    kernels = resolver.workload.kernels[first.place.producer + 1 : first.place.reader]
    window = None
    if baseline is not None:
        times = [float(baseline.starts[e.place.reader] - baseline.ends[e.place.producer]) for e in own]
        window = Figure(median(times), "us", min(times), max(times), "modelled")
    return replace(
        row,
        example=first.prefetch.weight,
        theoretical_size=max(e.prefetch.theoretical_size for e in own),
        max_size=max_size,
        coefficient=None if target.max_size is not None else resolver.coefficient(target),
        l2_share=max_size / limits.l2_bytes if limits is not None else None,
        in_flight=max(waiting[id(e)] for e in own),
        window=window,
        crosses=tuple(k.op for k in kernels),
    )


def _nothing_left(report: Reporter, recipe: Recipe, loaded: Resolvable, names: Names) -> None:
    role = loaded.deployment.role
    if recipe.generic and role == "all":
        there = ", ".join(f"{name} ({layers})" for name, (layers, _) in names.roles.counts().items()) or "none"
        message = f"no target of recipe `{recipe.name}` fits model `{loaded.spec.name}`"
        fix = f"Choose another recipe. The roles of this model, with the number of layers that have them: {there}."
    else:
        message = f"no target of recipe `{recipe.name}` is left for role `{role}`"
        fix = "Choose a recipe for this role, or another deployment."
    report.error("nothing-left", "recipe.prefetch.targets", message, fix)


def _any_error(report: Reporter) -> bool:
    return any(p.severity == "error" for p in report.problems)


def _refuse_overlaps(report: Reporter, entries: list[Entry], names: Names) -> None:
    """One problem per pair of targets whose byte ranges of one weight overlap."""
    by_weight: dict[str, list[Prefetch]] = {}
    for entry in entries:
        by_weight.setdefault(entry.prefetch.weight, []).append(entry.prefetch)
    told: set[tuple[str, str]] = set()
    for weight, uses in by_weight.items():
        for k, late in enumerate(uses):
            for early in uses[:k]:
                overlap = early.offset < late.offset + late.max_size and late.offset < early.offset + early.max_size
                pair = (early.target, late.target)
                if not overlap or pair in told:
                    continue
                told.add(pair)
                both = f"targets `{pair[0]}` and `{pair[1]}`" if pair[0] != pair[1] else f"target `{pair[0]}`"
                report.error(
                    "prefetched-twice",
                    f"recipe.prefetch.targets.{late.target}.weight",
                    f"{both} prefetch the same bytes of `{names.relative(weight, late.layer)}` twice in a step: "
                    f"after {_after(early, late.layer, names)} and after {_after(late, late.layer, names)}",
                    "Keep one of them, or give them byte ranges that do not overlap (offset, max_size).",
                )


def _after(entry: Prefetch, i: int, names: Names) -> str:
    return f"`{names.relative(entry.dependency, i)}{':input' if entry.port == 'input' else ''}`"
