"""The scope table: what the scopes of one name hold, all layers together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from models.paths import Names
from pipeline.figures import Figure
from pipeline.fusable import fuses, runs, why_not
from pipeline.scope_choice import serialises
from pipeline.scope_spans import Calls, Span
from pipeline.scope_strategies import Part
from pipeline.superkernel_options import as_text
from transforms.plan import Scope


@dataclass(frozen=True)
class Placed:
    """A scope of the plan and what it covers."""

    scope: Scope
    part: Part
    span: Span


@dataclass(frozen=True)
class ScopeMatch:
    """One row of the scope table: the scopes of one name in all layers.

    Attributes:
        name: of the custom scope, or the strategy, with a number where a layer has several.
        label: of the first scope.
        first, last: as a recipe writes them.
        options: as the compiler gets them.
        matched: scopes.
        skipped: layers that do not have it.
        kernels: kernels inside, all scopes together.
        fusable: kernels of SuperKernels of two or more, all scopes together.
        launches_saved: kernels that follow another one in the same SuperKernel.
        superkernels: SuperKernels of two or more kernels.
        cut_by: (operator, kernels, why) of what cuts the scopes; `sometimes` ones are part of `fusable`.
        streams: inside, in program order.
        serialises: streams that used to overlap run one after the other inside.
        launch_saving: launch time saved, us per layer, with its band; None without a machine.
        step_saving: what the nominal step gets shorter by these scopes alone, us per layer; None without a machine.
    """

    name: str
    label: str
    first: str
    last: str
    options: str
    matched: int
    skipped: int
    kernels: int
    fusable: int
    launches_saved: int
    superkernels: int
    cut_by: tuple[tuple[str, int, str], ...]
    streams: tuple[str, ...]
    serialises: bool
    launch_saving: Figure | None = None
    step_saving: Figure | None = None

    @property
    def share(self) -> float:
        """Fusable share of the kernels, 0 to 1."""
        return self.fusable / self.kernels if self.kernels else 0.0

    def to_json(self) -> dict[str, Any]:
        """For `validate` and `run`; savings are modelled."""
        data = asdict(self)
        data["cut_by"] = [{"op": op, "kernels": count, "why": why} for op, count, why in self.cut_by]
        return {**data, "fusable_share": self.share}


def by_name(placed: Iterable[Placed]) -> dict[str, list[Placed]]:
    """Name -> its scopes; names in the order of their first scope."""
    found: dict[str, list[Placed]] = {}
    for scope in placed:
        found.setdefault(scope.part.name, []).append(scope)
    return found


def scope_rows(
    placed: Iterable[Placed], calls: Calls, names: Names, skipped: Mapping[str, int]
) -> tuple[ScopeMatch, ...]:
    """One row per name, in execution order.

    Args:
        placed: in execution order.
        calls: of the step.
        names: of the model.
        skipped: name -> layers without it.
    """
    return tuple(_row(n, members, calls, names, skipped.get(n, 0)) for n, members in by_name(placed).items())


def _row(name: str, members: Sequence[Placed], calls: Calls, names: Names, skipped: int) -> ScopeMatch:
    kernels = [k for p in members for k in calls.members(p.span)]
    fused = [(p, run) for p in members for run in runs(calls.members(p.span)) if len(run) > 1]
    everything = calls.workload.kernels
    counts: dict[str, int] = {}
    for kernel in kernels:
        if fuses(kernel) != "always":
            counts[kernel.op] = counts.get(kernel.op, 0) + 1
    first = members[0]
    return ScopeMatch(
        name=name,
        label=first.scope.label,
        first=names.relative(first.scope.first, first.part.layer),
        last=names.relative(first.scope.last, first.part.layer),
        options=as_text(first.scope.options),
        matched=len(members),
        skipped=skipped,
        kernels=len(kernels),
        fusable=sum(len(run) for _, run in fused),
        launches_saved=sum(len(run) - 1 for _, run in fused),
        superkernels=len(fused),
        cut_by=tuple((op, count, why_not(op) or "host or peer time") for op, count in counts.items()),
        streams=tuple(dict.fromkeys(k.stream for k in kernels)),
        serialises=any(serialises([everything[i] for i in run], p.scope.options) for p, run in fused),
    )
