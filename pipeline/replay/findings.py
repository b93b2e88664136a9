"""What a profile says about a model: named candidates, their forecast in the replay, and the recipe."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pipeline.analysis.results import Candidate as Found
from pipeline.analysis.results import Chain
from pipeline.figures import Figure
from pipeline.mapping.emit import Header, Written, band_text, write_recipe
from pipeline.mapping.naming import Named, Unnamed, name_candidates
from pipeline.replay.measured import Measured
from pipeline.replay.timed import weight_name
from pipeline.replay.tuning import Candidate, Tuned, tune
from pipeline.simulator.copies import Copy
from pipeline.simulator.forecast import Baseline
from pipeline.windows import copies_of

if TYPE_CHECKING:
    from models.loading import LoadedModel
    from pipeline.analysis.results import PhaseAnalysis

DRAWS = 64


@dataclass(frozen=True)
class Findings:
    """Candidates of a profile, tuned in the replay.

    Attributes:
        measured: the replayed step.
        tuned: forecasts of every candidate and size, and of the combination.
        labels: name of a candidate in `tuned` -> kernel of the profile.
        unnamed: candidates without a place in the model.
        recipe: for the model; None without one.
    """

    measured: Measured
    tuned: Tuned
    labels: dict[str, str]
    unnamed: tuple[Unnamed, ...] = ()
    recipe: Written | None = None

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
            "together": [_trial_json(t.chosen, t.gain) for t in self.tuned.steps],
            "did_not_add": [_trial_json(t.chosen, t.gain) for t in self.tuned.refused],
            "kernels": self.labels,
            "not_placed": [{"target": u.candidate.target.label, "reason": dict(u.reason)} for u in self.unnamed],
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
        copies = []
        for target_row, dependency_row in found.pairs:
            target, dependency = measured.step.at_row(target_row), measured.step.at_row(dependency_row)
            if target is not None and dependency is not None:
                copies.append(Copy(weight_name(target), measured.of[dependency], found.weight_bytes, 0))
        if copies:
            labels[found.target.label] = _label(found)
            candidates.append(Candidate(found.target.label, tuple(copies)))
    return Findings(measured, _tuned(measured, candidates, draws), labels)


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
    named, unnamed = name_candidates(
        phase.candidates, measured.step, measured.on_workload(), workload, loaded.root, loaded.layers
    )
    first = write_recipe(header, named, loaded, workload, machine)
    groups = _groups(first.kept)
    copies = copies_of(first.resolution.plan, workload)
    sizes = workload.weight_bytes
    candidates = []
    for name, targets in groups.items():
        names = {t.name for t in targets}
        mine = [
            Copy(copy.weight, copy.after, sizes[copy.weight], 0)
            for entry, copy in zip(first.resolution.plan.prefetch, copies, strict=True)
            if entry.target in names
        ]
        candidates.append(Candidate(name, tuple(mine)))
    tuned = _tuned(measured, candidates, draws)
    gains: dict[str, tuple[Decimal, Figure]] = {}
    chosen: dict[str, Decimal] = {}
    for name, targets in groups.items():
        alone = tuned.best_alone(name)
        gains |= {t.name: (alone.chosen[0][1], alone.gain) for t in targets}
        share = dict(tuned.best.chosen).get(name) if tuned.best else None
        if share is not None:
            chosen |= {t.name: share for t in targets}
    sized = [replace(t, coefficient=chosen.get(t.name, t.coefficient)) for t in named]
    recipe = write_recipe(
        _with_forecast(header, measured, tuned),
        sized,
        loaded,
        workload,
        machine,
        unnamed,
        _chains(phase.chains, measured),
        gains,
        list(chosen) or None,
    )
    labels = {name: _label(targets[0].candidate) for name, targets in groups.items()}
    return Findings(measured, tuned, labels, tuple(unnamed), recipe)


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


def _tuned(measured: Measured, candidates: Sequence[Candidate], draws: int) -> Tuned:
    if not candidates:
        return Tuned(())
    return tune(Baseline(measured.workload, measured.machine, draws), candidates, draws=draws)


def _groups(kept: Sequence[Named]) -> dict[str, list[Named]]:
    """Targets of one kernel are tuned together; the group has the name of the first."""
    groups: dict[int, list[Named]] = {}
    for target in kept:
        groups.setdefault(id(target.candidate), []).append(target)
    return {targets[0].name: targets for targets in groups.values()}


def _chains(chains: Sequence[Chain], measured: Measured) -> list[tuple[Chain, str]]:
    """Chains worth a scope, with the modules at their ends."""
    found = []
    for chain in chains:
        if chain.worth:
            first, last = (measured.module_at(row) for row in chain.rows[len(chain.rows) // 2])
            found.append((chain, f"{first or 'not placed'} to {last or 'not placed'}"))
    return found


def _trial_json(chosen: Sequence[tuple[str, Decimal]], gain: Figure) -> dict[str, Any]:
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
