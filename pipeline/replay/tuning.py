"""The specification's order of tuning, run on the simulator: sizes first, then positions, then several targets.

1. Fix the position and change only the size: 0.5 -> 0.7 -> 1.0, and 0.5 -> 0.3 -> 0.1.
2. Fix that size and try the other positions of the same weight.
3. Only then several targets together, beginning with what gains most alone; one that does not add is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from pipeline.figures import Figure
from pipeline.simulator.copies import Copy
from pipeline.verdict import NEGLIGIBLE

if TYPE_CHECKING:
    from pipeline.simulator.forecast import Baseline

COEFFICIENTS = tuple(Decimal(c) for c in ("0.5", "0.7", "1.0", "0.3", "0.1"))  # in the specification's order


@dataclass(frozen=True)
class Candidate:
    """One target in all its layers.

    Attributes:
        name: of the target.
        copies: one per layer, each of the whole weight, in the order of the step.
        weight: what the candidates of one weight have in common; of these at most one is chosen, and all but the
            first are further positions, tried at the best size of the first. "" for none.
        order: per copy, what decides which is issued first; empty: the place of its dependency.
    """

    name: str
    copies: tuple[Copy, ...]
    weight: str = ""
    order: tuple[tuple[int, int], ...] = ()

    def at(self, coefficient: Decimal) -> list[Copy]:
        """The copies at a share of the weight, whole bytes."""
        return [replace(copy, size=int(Decimal(int(copy.size)) * coefficient)) for copy in self.copies]


@dataclass(frozen=True)
class Trial:
    """One combination that was tried.

    Attributes:
        chosen: (name, coefficient) of every target in it.
        gain: % of the replayed step, modelled, with paired band.
    """

    chosen: tuple[tuple[str, Decimal], ...]
    gain: Figure


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes:
        alone: per candidate and coefficient, in the specification's order.
        moved: the further positions, each at the best size of the first.
        steps: the combination after each target that was added.
        refused: targets that were tried on top and did not add.
    """

    alone: tuple[Trial, ...]
    steps: tuple[Trial, ...] = ()
    refused: tuple[Trial, ...] = field(default=())
    moved: tuple[Trial, ...] = field(default=())

    @property
    def best(self) -> Trial | None:
        """The last combination; None if no target pays."""
        return self.steps[-1] if self.steps else None

    def best_alone(self, name: str) -> Trial:
        """The size at which a target gains most alone; of equal ones the smaller."""
        return _best([t for t in (*self.alone, *self.moved) if t.chosen[0][0] == name])


def tune(
    baseline: "Baseline",
    candidates: Sequence[Candidate],
    coefficients: Sequence[Decimal] = COEFFICIENTS,
    draws: int = 64,
) -> Tuned:
    """Try every size of every target alone, then its other positions, then add targets as long as it gets faster.

    A target that gains nothing alone (nominal) is not tried in a combination. One is added if the nominal gain grows by
    more than is negligible, and if a gain that is sure (its whole band above zero) stays so.

    Args:
        baseline: of the replayed step.
        candidates: the targets.
        coefficients: shares of the weight to try.
        draws: of the unknowns, for the bands; at most those of the baseline.
    """
    first: dict[str, Candidate] = {}
    for c in candidates:
        first.setdefault(c.weight or c.name, c)
    further = [c for c in candidates if first[c.weight or c.name] is not c]
    tries = [(c, share) for c in first.values() for share in coefficients]
    gains = baseline.evaluate_many([chain([(c, share)]) for c, share in tries], draws)
    alone = tuple(Trial(((c.name, share),), gain) for (c, share), gain in zip(tries, gains, strict=True))
    found = Tuned(alone)
    moves = [(c, found.best_alone(first[c.weight].name).chosen[0][1]) for c in further]
    gains = baseline.evaluate_many([chain([move]) for move in moves], draws)
    moved = tuple(Trial(((c.name, share),), gain) for (c, share), gain in zip(moves, gains, strict=True))
    found = replace(found, moved=moved)
    order = sorted((found.best_alone(c.name) for c in candidates), key=lambda t: (-t.gain.value, t.chosen[0][0]))
    by_name = {c.name: c for c in candidates}
    chosen: list[tuple[Candidate, Decimal]] = []
    steps: list[Trial] = []
    refused: list[Trial] = []
    best = Figure(0.0, "%")
    for trial in order:
        name, share = trial.chosen[0]
        candidate = by_name[name]
        taken = any(candidate.weight and c.weight == candidate.weight for c, _ in chosen)
        if trial.gain.value <= 0.0 or taken:
            continue
        together = [*chosen, (candidate, share)]
        gain = baseline.evaluate_many([chain(together)], draws)[0]
        tried = Trial(tuple((c.name, s) for c, s in together), gain)
        if _adds(best, gain):
            chosen, best = together, gain
            steps.append(tried)
        else:
            refused.append(tried)
    return replace(found, steps=tuple(steps), refused=tuple(refused))


def chain(chosen: Sequence[tuple[Candidate, Decimal]]) -> list[Copy]:
    """The copies of several targets in the order in which they are issued."""
    copies: list[tuple[tuple[int, int], Copy]] = []
    for candidate, share in chosen:
        mine = candidate.at(share)
        copies += zip(candidate.order or [(copy.after, 0) for copy in mine], mine, strict=True)
    return [copy for _, copy in sorted(copies, key=lambda c: c[0])]


def _adds(before: Figure, after: Figure) -> bool:
    sure_before, sure_after = ((f.value if f.low is None else f.low) > 0.0 for f in (before, after))
    return after.value - before.value >= NEGLIGIBLE and (sure_after or not sure_before)


def _best(trials: Sequence[Trial]) -> Trial:
    return max(trials, key=lambda t: (t.gain.value, -t.chosen[0][1]))
