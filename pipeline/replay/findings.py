"""What a profile says about a model: named candidates, their forecast in the replay, and the recipe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline.analysis.results import Candidate as Found
from pipeline.analysis.results import Chain
from pipeline.figures import Figure, band_text
from pipeline.mapping.emit import Header, Written, write_recipe
from pipeline.mapping.later import later_candidates, later_pairs
from pipeline.mapping.naming import Named, Unnamed, name_candidates
from pipeline.mapping.scopes import name_scopes
from pipeline.replay.measured import Measured
from pipeline.replay.timed import weight_name
from pipeline.replay.tuning import Candidate, Tuned, chain, tune
from pipeline.scope_spans import fused_scopes
from pipeline.simulator.copies import Copy
from pipeline.simulator.forecast import Baseline
from pipeline.windows import copies_of

if TYPE_CHECKING:
    from decimal import Decimal

    from models.loading import LoadedModel
    from models.workload import Workload
    from pipeline.analysis.results import PhaseAnalysis
    from pipeline.resolve import Resolution
    from pipeline.simulator.fusion import FusedScope

DRAWS = 64


@dataclass(frozen=True)
class Scoped:
    """SuperKernel scopes of the recipe in the replay.

    Attributes:
        scopes: how many, in all layers.
        alone: gain of the step, %, modelled.
        together: with the targets that the replay chose; None if it chose none.
    """

    scopes: int
    alone: Figure
    together: Figure | None


@dataclass(frozen=True)
class Findings:
    """Candidates of a profile, tuned in the replay.

    Attributes:
        measured: the replayed step.
        tuned: forecasts of every candidate and size, and of the combination.
        labels: name of a candidate in `tuned` -> kernel of the profile.
        unnamed: candidates without a place in the model.
        recipe: for the model; None without one.
        scoped: its SuperKernel scopes; None without any.
    """

    measured: Measured
    tuned: Tuned
    labels: dict[str, str]
    unnamed: tuple[Unnamed, ...] = ()
    recipe: Written | None = None
    scoped: Scoped | None = None

    def to_json(self) -> dict[str, Any]:
        recipe = None
        if self.recipe is not None:
            recipe = {
                "text": self.recipe.text,
                "targets": [_target_json(t) for t in self.recipe.kept],
                "left_out": [{"target": t.name, "reason": reason} for t, reason in self.recipe.left_out],
            }
        return {
            "replay": self.measured.to_json(),
            "alone": [_trial_json(t.chosen, t.gain) for t in self.tuned.alone],
            "moved": [_trial_json(t.chosen, t.gain) for t in self.tuned.moved],
            "together": [_trial_json(t.chosen, t.gain) for t in self.tuned.steps],
            "did_not_add": [_trial_json(t.chosen, t.gain) for t in self.tuned.refused],
            "kernels": self.labels,
            "not_placed": [{"target": u.candidate.target.label, "reason": dict(u.reason)} for u in self.unnamed],
            "superkernel": None
            if self.scoped is None
            else {
                "scopes": self.scoped.scopes,
                "alone": self.scoped.alone.to_json(),
                "together": self.scoped.together.to_json() if self.scoped.together else None,
            },
            "recipe": recipe,
        }


def profile_findings(measured: Measured, phase: "PhaseAnalysis", draws: int = DRAWS) -> Findings:
    """Forecast the candidates of a profile without a model: weights have no names, but the times are the same.

    Args:
        measured: the replayed step, without a model.
        phase: of the analysis.
        draws: of the unknowns, for the bands.
    """
    candidates, labels = [], {}
    for found in phase.candidates:
        name = found.target.label
        later = replace(found, dependency=found.nearest, pairs=later_pairs(found, measured.step))
        for key, position in ((name, found), (_later(name), later)):
            copies = []
            for target_row, dependency_row in position.pairs:
                target, dependency = measured.step.at_row(target_row), measured.step.at_row(dependency_row)
                if target is not None and dependency is not None:
                    copies.append(Copy(weight_name(target), measured.of[dependency], found.weight_bytes, 0))
            if copies:
                labels[key] = _label(position)
                candidates.append(Candidate(key, tuple(copies), name))
    if not candidates:
        return Findings(measured, Tuned(()), labels)
    baseline = Baseline(measured.workload, measured.machine, draws)
    return Findings(measured, tune(baseline, candidates, draws=draws), labels)


def model_findings(
    measured: Measured, phase: "PhaseAnalysis", loaded: "LoadedModel", header: Header, draws: int = DRAWS
) -> Findings:
    """Name the candidates in the model, forecast them, and write the recipe.

    Args:
        measured: the replayed step, mapped on `loaded`.
        phase: of the analysis.
        loaded: the model, full size.
        header: of the recipe.
        draws: of the unknowns, for the bands.
    """
    workload, machine = measured.workload, measured.machine
    mapping = measured.on_workload()
    where = (measured.step, mapping, workload, loaded.root, loaded.layers)
    named, unnamed = name_candidates(phase.candidates, *where)
    scopes, rest = name_scopes(phase.chains, *where)
    first = write_recipe(header, named, loaded, workload, machine, scopes=scopes)
    groups = _groups(first.kept)
    labels = {name: _label(targets[0].candidate) for name, targets in groups.items()}
    candidates = [_candidate(name, targets, first.resolution, workload) for name, targets in groups.items()]
    moved = _moved(groups, name_candidates(later_candidates(phase.candidates, measured.step), *where)[0])
    second = write_recipe(header, [t for targets in moved.values() for t in targets], loaded, workload, machine)
    moved = {name: targets for name, targets in moved.items() if all(t in second.kept for t in targets)}
    for name, targets in moved.items():
        later = _later(name)
        labels[later] = _label(targets[0].candidate)
        candidates.append(replace(_candidate(name, targets, second.resolution, workload), name=later))
    baseline = Baseline(workload, machine, draws)
    tuned = tune(baseline, candidates, draws=draws) if candidates else Tuned(())
    chosen = dict(tuned.best.chosen) if tuned.best else {}
    final: list[Named] = []
    for target in named:
        name = next((n for n, targets in groups.items() if target in targets), "")
        other = {t.name: t for t in moved.get(name, ())}
        taken = other[target.name] if _later(name) in chosen and target.name in other else target
        share = chosen.get(_later(name), chosen.get(name))
        final.append(replace(taken, coefficient=target.coefficient if share is None else share))
    only = [t.name for name, targets in groups.items() if name in chosen or _later(name) in chosen for t in targets]
    scoped = _scoped(baseline, fused_scopes(first.resolution.plan, workload), candidates, tuned, draws)
    recipe = write_recipe(
        _with_forecast(header, measured, tuned),
        final,
        loaded,
        workload,
        machine,
        unnamed,
        [(chain, _ends(chain, measured)) for chain in rest],
        _notes(groups, moved, tuned),
        only or None,
        scopes,
        scope_lines(scoped),
    )
    return Findings(measured, tuned, labels, tuple(unnamed), recipe, scoped)


def _candidate(name: str, targets: Sequence[Named], found: "Resolution", workload: "Workload") -> Candidate:
    """The copies of the weights of one kernel, whole, in the plan's order."""
    names = [t.name for t in targets]
    rows = [
        (Copy(copy.weight, copy.after, workload.weight_bytes[copy.weight], 0), place.event)
        for entry, copy, place in zip(
            found.plan.prefetch, copies_of(found.plan, workload), found.placements, strict=True
        )
        if entry.target in names
    ]
    place_in_recipe = {m.target: at for at, m in enumerate(found.matches)}
    at = place_in_recipe.get(names[0], 0)
    return Candidate(name, tuple(c for c, _ in rows), name, tuple((event, at) for _, event in rows))


def _moved(groups: dict[str, list[Named]], later: Sequence[Named]) -> dict[str, list[Named]]:
    """Group -> its targets at the nearest dependency, where that is another one and holds for every weight."""
    found: dict[str, list[Named]] = {}
    for name, targets in groups.items():
        row = targets[0].candidate.target.row
        at = {t.weight: t for t in later if t.candidate.target.row == row}
        if all(t.weight in at and at[t.weight].dependency != t.dependency for t in targets):
            found[name] = [replace(at[t.weight], name=t.name) for t in targets]
    return found


def _later(name: str) -> str:
    """Name of the candidate that starts at the nearest dependency."""
    return f"{name} later"


def _notes(groups: dict[str, list[Named]], moved: dict[str, list[Named]], tuned: Tuned) -> dict[str, list[str]]:
    """Target -> what the replay says of it."""
    notes: dict[str, list[str]] = {}
    for name, targets in groups.items():
        alone = tuned.best_alone(name)
        lines = [f"alone in the replay best at {alone.chosen[0][1]}: {band_text(alone.gain)} of the step (modelled)"]
        if name in moved:
            gain = tuned.best_alone(_later(name)).gain
            where = f"{targets[0].dependency} (then {moved[name][0].dependency})"
            lines.append(f"positions tried at that size: {where}: then {band_text(gain)} (modelled)")
        notes |= {t.name: lines for t in targets}
    return notes


def _scoped(
    baseline: Baseline, scopes: Sequence["FusedScope"], candidates: Sequence[Candidate], tuned: Tuned, draws: int
) -> Scoped | None:
    """What the scopes of the recipe gain, alone and with the chosen targets."""
    if not scopes:
        return None
    (alone,) = baseline.evaluate_many([[]], draws, scopes)
    if tuned.best is None:
        return Scoped(len(scopes), alone, None)
    by_name = {c.name: c for c in candidates}
    copies = chain([(by_name[name], share) for name, share in tuned.best.chosen])
    (both,) = baseline.evaluate_many([copies], draws, scopes)
    return Scoped(len(scopes), alone, both)


def scope_lines(scoped: "Scoped | None") -> list[str]:
    """The forecast of the scopes in words."""
    if scoped is None:
        return []
    lines = [f"{scoped.scopes} scopes in the replay: {band_text(scoped.alone)} of the step (modelled, paired band)"]
    if scoped.together is not None:
        lines.append(f"together with the chosen targets: {band_text(scoped.together)} (modelled, paired band)")
    return lines


def _label(found: Found) -> str:
    return f"{found.target.label} after {found.dependency.label}"


def _with_forecast(header: Header, measured: Measured, tuned: Tuned) -> Header:
    lines = [
        f"Step {measured.measured.value:.1f} us (measured), {measured.replayed.value:.1f} us in the replay (modelled).",
        f"Forecast of the targets together: {band_text(tuned.best.gain)} of the step (modelled, paired band)."
        if tuned.best
        else "No target pays in the replay (modelled): nothing is chosen, the targets are for trials of your own.",
    ]
    return replace(header, lines=(*header.lines, *lines))


def _groups(kept: Sequence[Named]) -> dict[str, list[Named]]:
    """Targets of one kernel are tuned together; the group has the name of the first."""
    groups: dict[int, list[Named]] = {}
    for target in kept:
        groups.setdefault(id(target.candidate), []).append(target)
    return {targets[0].name: targets for targets in groups.values()}


def _ends(chain: Chain, measured: Measured) -> str:
    """The modules at the ends of a chain, in a middle layer."""
    first, last = (measured.module_at(row) for row in chain.rows[len(chain.rows) // 2])
    return f"{first or 'not placed'} to {last or 'not placed'}"


def _trial_json(chosen: Sequence[tuple[str, "Decimal"]], gain: Figure) -> dict[str, Any]:
    return {"targets": {name: float(share) for name, share in chosen}, "gain": gain.to_json()}


def _target_json(target: Named) -> dict[str, Any]:
    found: Found = target.candidate
    return {
        "target": target.name,
        "weight": target.weight,
        "dependency": target.dependency,
        "coefficient": float(target.coefficient),
        "kernel": found.target.label,
        "layers": target.layers,
        "sure": target.sure,
    }
