"""What a trial found about its SuperKernel scopes: plain records, part of `pipeline.record`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipeline.figures import Figure

if TYPE_CHECKING:
    from pipeline.record import Text
    from pipeline.scope_choice import Candidate


@dataclass(frozen=True)
class ScopeResult:
    """What became of the SuperKernel scopes of one name.

    Attributes:
        name: of the custom scope, or the strategy with a number.
        label: of the first scope.
        first, last: as a recipe writes them.
        options: as the compiler gets them.
        count: scopes in a step.
        kernels: kernels inside, all scopes together.
        fusable_share: share of them in SuperKernels of two or more, %.
        launches_saved: kernels that follow another one in their SuperKernel.
        superkernels: SuperKernels of two or more kernels.
        streams: inside.
        serialises: streams that used to overlap run one after the other.
        cut_by: (operator, kernels, why) of what does not fuse, or not always.
        baseline, optimized: summed time of the kernels inside, us per layer; `change` in % of baseline.
        launch_saving: launch time saved, us per layer, by arithmetic.
        gain_alone: gain of the step with these scopes only, %.
    """

    name: str
    label: str
    first: str
    last: str
    options: str
    count: int
    kernels: int
    fusable_share: float
    launches_saved: int
    superkernels: int
    streams: tuple[str, ...]
    serialises: bool
    cut_by: tuple[tuple[str, int, str], ...]
    baseline: Figure
    optimized: Figure
    change: Figure
    launch_saving: Figure | None = None
    gain_alone: Figure | None = None

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["cut_by"] = [{"op": op, "kernels": count, "why": why} for op, count, why in self.cut_by]
        return data


@dataclass(frozen=True)
class SuperKernelResult:
    """The SuperKernel lever of a trial.

    Attributes:
        strategy: in force; what `auto` chose.
        about: what speaks for and against it.
        why: why `auto` chose it.
        scopes: one per name, in execution order.
        candidates: what `auto` chose from.
        prefetch_alone, superkernel_alone: gain of the step with one lever only, %; the first is None if the plan has no
            prefetch.
    """

    strategy: str
    about: "Text"
    why: "Text | None"
    scopes: Sequence[ScopeResult]
    prefetch_alone: Figure | None = None
    superkernel_alone: Figure | None = None
    candidates: "Sequence[Candidate]" = ()

    def to_json(self, language: str = "en") -> dict[str, Any]:
        return {
            "strategy": self.strategy,
            "about": self.about.get(language),
            "why": self.why.get(language) if self.why else None,
            "scopes": [s.to_json() for s in self.scopes],
            "candidates": [c.to_json(language) for c in self.candidates],
            "prefetch_alone": self.prefetch_alone.to_json() if self.prefetch_alone else None,
            "superkernel_alone": self.superkernel_alone.to_json() if self.superkernel_alone else None,
        }
