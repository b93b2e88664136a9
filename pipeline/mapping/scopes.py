"""Chains of a profile as SuperKernel scopes of the model: a first and a last module per layer."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models.workload import Workload
from pipeline.analysis.results import Chain
from pipeline.mapping.naming import Paths, target_name
from pipeline.mapping.placed import Mapping
from pipeline.mapping.step import Step
from pipeline.scope_spans import Calls


@dataclass(frozen=True)
class NamedScope:
    """One scope of a recipe that comes from a profile.

    Attributes:
        name: of the scope.
        first, last: structural paths of its first and last module.
        chain: what the profile shows.
        kernels: kernels of the model inside, in one layer; at most those of the chain.
        layers: chains that these paths stand for.
    """

    name: str
    first: str
    last: str
    chain: Chain
    kernels: int
    layers: int


def name_scopes(
    chains: Iterable[Chain], step: Step, mapping: Mapping, workload: Workload, root: str, layers: str
) -> tuple[list[NamedScope], list[Chain]]:
    """Name the chains that are worth a scope.

    Args:
        chains: of the analysis.
        step: the profile's step.
        mapping: of the step on the workload.
        workload: the traced step.
        root, layers: where the layer list is.

    Returns:
        Scopes, and the chains that no modules of one forward cover in the numbered layers, or only modules whose
        forward runs several times in a layer: source is written for all of them, and each scope needs its own label.
    """
    paths, calls = Paths(root, layers), Calls(workload)
    kernel_of = {p.at: p.kernel for p in mapping.placed}
    named: list[NamedScope] = []
    rest: list[Chain] = []
    names: Counter[str] = Counter()
    for chain in chains:
        if not chain.worth:
            continue
        votes: Counter[tuple[str, str, int]] = Counter()
        for ends in chain.rows:
            at = [step.at_row(row) for row in ends]
            first, last = (kernel_of.get(a) if a is not None else None for a in at)
            span = _modules(calls, first, last) if first is not None and last is not None else None
            if span is not None:
                votes[(*paths.pair(span[1], span[0]), span[2])] += 1
        best = [(pair, n) for pair, n in votes.most_common(1) if "{i}" in pair[0] and "{i}" in pair[1]]
        if not best:
            rest.append(chain)
            continue
        (end, begin, kernels), count = best[0]
        name = target_name(begin)
        names[name] += 1
        name = name if names[name] == 1 else f"{name}_{names[name]}"
        named.append(NamedScope(name, begin, end, chain, kernels, count))
    statements = Counter(_statement(scope) for scope in named)
    again = [scope for scope in named if statements[_statement(scope)] > 1]
    return [scope for scope in named if scope not in again], [*rest, *(scope.chain for scope in again)]


def _statement(scope: NamedScope) -> tuple[str, str]:
    """The paths without numbers: `layers.{i}.mlps.0.up` and `layers.{i}.mlps.1.up` run the same statement."""
    return re.sub(r"\.\d+\.", ".*.", scope.first), re.sub(r"\.\d+\.", ".*.", scope.last)


def _modules(calls: Calls, first: int, last: int) -> tuple[str, str, int] | None:
    """The modules of one forward that cover most of the kernels from `first` to `last` and none outside.

    Returns:
        First and last module and the number of kernels; None if no modules cover two kernels.
    """
    inside = [fqn for fqn in calls.workload.calls if calls.one(fqn) is not None and _within(calls, fqn, first, last)]
    by_caller: dict[str | None, list[str]] = {}
    for fqn in inside:
        by_caller.setdefault(calls.caller(fqn), []).append(fqn)
    best: tuple[str, str, int] | None = None
    for siblings in by_caller.values():
        siblings.sort(key=lambda f: calls.workload.calls[f][0].enter)
        found = _longest(calls, siblings, first, last)
        if found is not None and (best is None or found[2] > best[2]):
            best = found
    return best


def _longest(calls: Calls, siblings: Sequence[str], first: int, last: int) -> tuple[str, str, int] | None:
    for a, begin in enumerate(siblings):
        for end in reversed(siblings[a:]):
            span = calls.span(begin, end)
            if span is not None and len(span.kernels) > 1 and span.kernels[0] >= first and span.kernels[-1] <= last:
                return begin, end, len(span.kernels)
    return None


def _within(calls: Calls, fqn: str, first: int, last: int) -> bool:
    kernels = calls.kernels(fqn)
    return len(kernels) > 0 and kernels[0] >= first and kernels[-1] <= last
