"""A second position for each candidate: the last kernel after which its copy still fits."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.analysis.results import Candidate
from pipeline.mapping.step import Step


def later_candidates(candidates: Sequence[Candidate], step: Step) -> list[Candidate]:
    """The candidates with their nearest dependency in place of the first; those without another one are left out.

    Args:
        candidates: of the analysis.
        step: the profile's step.
    """
    found = []
    for candidate in candidates:
        pairs = later_pairs(candidate, step)
        if pairs:
            found.append(replace(candidate, dependency=candidate.nearest, pairs=pairs))
    return found


def later_pairs(candidate: Candidate, step: Step) -> tuple[tuple[int, int], ...]:
    """(row of the target, row of the nearest dependency) in every layer that has it at the same place.

    The nearest dependency is known in one layer; in the others it is as many kernels back on the critical path.
    """
    if candidate.nearest.row == candidate.dependency.row:
        return ()
    at, back = step.at_row(candidate.target.row), step.at_row(candidate.nearest.row)
    hops = 0
    while at is not None and at >= 0 and at != back:
        at, hops = int(step.before[at]), hops + 1
    if at is None or at < 0:
        return ()
    pairs = []
    for target, _ in candidate.pairs:
        at = step.at_row(target)
        for _ in range(hops):
            at = int(step.before[at]) if at is not None and at >= 0 else None
        if at is not None and at >= 0 and step.op_types[at] == candidate.nearest.op_type:
            pairs.append((target, int(step.rows[at])))
    return tuple(pairs)
