"""Which kernel of the model each kernel of a profile's step is, and how sure that is."""

from bisect import bisect
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.workload import Kernel, Workload
from pipeline.analysis.operators import Kind, OperatorTable, plain_name
from pipeline.mapping.align import GAP, NEVER, Alignment, Sequence, align, best_score
from pipeline.mapping.step import Step

Sureness = Literal["sure", "likely", "ambiguous"]

SAME_OPERATOR = 3.0  # base score: the same operator
SAME_KIND = 1.0  # another operator of the same kind: RmsNorm and AddRmsNorm, say
MATMULS = ("matmul", "batch_matmul")  # one may stand for the other
_CLEAR = 1.0  # a pair whose next best place scores less by this is no matter of chance
_FEW = 0.5  # share of paired kernels, or of paired weights, below which the profile is probably of another model
_TOUCH = 0.05  # us; what rounding to nanoseconds leaves between kernels that touch
_NEIGHBOURS = 4  # kernels before and after that say where in the model a kernel stands
_BIG_WEIGHT = 1 << 16  # bytes; scales and norms are not what a kernel is recognised by


@dataclass(frozen=True)
class Placed:
    """One kernel of the profile's step found in the model.

    Attributes:
        at: its position in the step.
        kernel: index in the workload.
        sure: `sure`: operator and bytes of the weight agree, and no other place is as good; `likely`: the operator
            agrees; `ambiguous`: another place is as good, or it began before what it reads was there.
    """

    at: int
    kernel: int
    sure: Sureness


@dataclass(frozen=True)
class Mapping:
    """A profile's step laid over a traced step.

    Attributes:
        placed: by position in the step.
        unplaced: positions that are no kernel of the model.
        missing: kernels of the workload that the step does not have.
        weights: pairs that read a weight of known size.
        weighty: kernels that read one, on the side that has fewer.
    """

    placed: tuple[Placed, ...]
    unplaced: tuple[int, ...]
    missing: tuple[int, ...]
    weights: int = 0
    weighty: int = 0

    @property
    def poor(self) -> bool:
        """Whether so little was found that the profile is probably of another model or deployment."""
        total = max(len(self.placed) + len(self.unplaced), len(self.placed) + len(self.missing))
        return len(self.placed) < _FEW * total or self.weights < _FEW * self.weighty


def place(step: Step, workload: Workload, operators: OperatorTable) -> Mapping:
    """Find every kernel of a step in the model.

    Streams are matched first: each of the profile's with the one of the model that it fits best. What is then left on
    both sides (collectives on a stream of their own, say) is aligned again in order of time, until nothing more is
    found. From the second pair of streams on, a kernel is taken only within a layer of where its neighbours are.

    Args:
        step: of the profile.
        workload: the traced step.
        operators: kinds of operators.

    Raises:
        ValueError: the step is too long to be aligned.
    """
    kernels = [k for k in workload.kernels if k.engine != "idle"]
    kinds = [operators.kind(k.op) for k in kernels]
    names = {name: n for n, name in enumerate(sorted(_names(step, kernels, kinds)))}
    base = _base_scores(names)
    left = _profile_side(step, names)
    right = _model_side(kernels, kinds, names)
    streams = np.array([k.stream for k in kernels])

    found: dict[int, tuple[int, float]] = {}
    reach = len(kernels) / max(1, workload.layers)
    for mine, theirs, alignment in _matched_streams(step, streams, left, right, base):
        found |= _near({int(mine[a]): (int(theirs[b]), m) for a, b, m in _pairs(alignment)}, found, reach)
    while True:
        rest_left = np.array([i for i in range(len(step)) if i not in found], np.int64)
        taken = {k for k, _ in found.values()}
        rest_right = np.array([k for k in range(len(kernels)) if k not in taken], np.int64)
        again = align(left.take(rest_left), right.take(rest_right), base)
        more = _near({int(rest_left[a]): (int(rest_right[b]), m) for a, b, m in _pairs(again)}, found, reach)
        if not more:
            break
        found |= more

    early = _early(step, workload, {kernels[k].index: at for at, (k, _) in found.items()})
    placed = tuple(
        Placed(
            at,
            kernels[k].index,
            "ambiguous" if at in early else _sureness(step, at, kernels[k], right.low[k], margin),
        )
        for at, (k, margin) in sorted(found.items())
    )
    indices = {p.kernel for p in placed}
    return Mapping(
        placed,
        tuple(i for i in range(len(step)) if i not in found),
        tuple(k.index for k in kernels if k.index not in indices),
        sum(bool(left.low[at] > 0 and right.low[k] > 0) for at, (k, _) in found.items()),
        int(min((left.low > 0).sum(), (right.low > 0).sum())),
    )


def _near(
    pairs: dict[int, tuple[int, float]], found: dict[int, tuple[int, float]], reach: float
) -> dict[int, tuple[int, float]]:
    """The pairs that stand in the model where the kernels that ran before and after them do, give or take `reach`."""
    anchors = sorted(found)
    if not anchors:
        return pairs
    near = {}
    for at, (kernel, margin) in pairs.items():
        here = bisect(anchors, at)
        around = [found[a][0] for a in anchors[max(0, here - _NEIGHBOURS) : here + _NEIGHBOURS]]
        if min(around) - reach <= kernel <= max(around) + reach:
            near[at] = kernel, margin
    return near


def _early(step: Step, workload: Workload, at_of: dict[int, int]) -> set[int]:
    """Kernels that began before one had ended whose result they would have read: one of the two is another kernel."""
    found = set()
    for kernel, at in at_of.items():
        for producer in workload.kernels[kernel].inputs:
            made = at_of.get(producer)
            if made is not None and step.end_us[made] > step.start_us[at] + _TOUCH:
                found |= {at, made}
    return found


def _matched_streams(
    step: Step, streams: np.ndarray, left: Sequence, right: Sequence, base: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, Alignment]]:
    """(positions, kernel numbers, alignment) of each pair of streams, the best fitting pair first."""
    mine = {int(s): np.flatnonzero(step.streams == s) for s in np.unique(step.streams)}
    theirs = {str(s): np.flatnonzero(streams == s) for s in dict.fromkeys(streams.tolist())}
    tried = []
    for stream, positions in mine.items():
        for label, numbers in theirs.items():
            score = best_score(left.take(positions), right.take(numbers), base)
            tried.append((score - GAP * (len(positions) + len(numbers)), stream, label))
    tried.sort(key=lambda t: (-t[0], t[1], t[2]))
    used: set[int | str] = set()
    matched = []
    for gain, stream, label in tried:
        if gain > 0 and not {stream, label} & used:
            used |= {stream, label}
            alignment = align(left.take(mine[stream]), right.take(theirs[label]), base)
            matched.append((mine[stream], theirs[label], alignment))
    return matched


def _pairs(alignment: Alignment) -> list[tuple[int, int, float]]:
    return list(zip(alignment.left.tolist(), alignment.right.tolist(), alignment.margin.tolist(), strict=True))


def _names(step: Step, kernels: Items[Kernel], kinds: Items[Kind]) -> set[tuple[str, str]]:
    found = {(kind.name, _operator(op)) for kind, op in zip(step.kinds, step.op_types, strict=True)}
    return found | {(kind.name, _operator(k.op)) for kind, k in zip(kinds, kernels, strict=True)}


def _operator(op_type: str) -> str:
    """`hcom_allReduce_` and `AllReduce` are one operator."""
    return plain_name(op_type).removeprefix("hcom_").removeprefix("hccl")


def _base_scores(names: dict[tuple[str, str], int]) -> np.ndarray:
    base = np.full((len(names), len(names)), NEVER)
    for (kind, operator), i in names.items():
        for (other, name), j in names.items():
            if operator == name:
                base[i, j] = SAME_OPERATOR
            elif (kind == other and kind != "other") or (kind in MATMULS and other in MATMULS):
                base[i, j] = SAME_KIND
    return base


def _profile_side(step: Step, names: dict[tuple[str, str], int]) -> Sequence:
    family = [names[kind.name, _operator(op)] for kind, op in zip(step.kinds, step.op_types, strict=True)]
    return Sequence(np.array(family, np.int64), step.weight_bytes, step.weight_bytes)


def _model_side(kernels: Items[Kernel], kinds: Items[Kind], names: dict[tuple[str, str], int]) -> Sequence:
    family = [names[kind.name, _operator(k.op)] for kind, k in zip(kinds, kernels, strict=True)]
    weights = [
        sum(r.stored_bytes for r in k.weights if r.stored_bytes >= _BIG_WEIGHT) if kind.target else 0
        for kind, k in zip(kinds, kernels, strict=True)
    ]
    sizes = np.array(weights, np.float64)
    return Sequence(np.array(family, np.int64), sizes, sizes)


def _sureness(step: Step, at: int, kernel: Kernel, weight_bytes: float, margin: float) -> Sureness:
    if margin < _CLEAR:
        return "ambiguous"
    known = step.weight_bytes[at] > 0 and weight_bytes > 0
    return "sure" if known or _operator(step.op_types[at]) == _operator(kernel.op) else "likely"
