"""Candidates of a profile in the words of the model: weight and dependency as structural paths."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal

from models.workload import ModuleCall, Workload
from pipeline.analysis.results import Candidate, Words
from pipeline.legality import Flow
from pipeline.mapping.placed import Mapping, Placed
from pipeline.mapping.step import Step

_SMALL_SHARE = 0.02  # of the weights of a kernel; scales and norms of a fused kernel are not prefetched
_STEPS = Decimal("0.01")


@dataclass(frozen=True)
class Named:
    """One target of a recipe that comes from a profile.

    Attributes:
        name: of the target.
        weight, dependency: structural paths; the dependency may end in `:input`.
        coefficient: share of the weight.
        candidate: what the profile shows.
        layers: pairs of target and dependency that these paths stand for.
        pairs: pairs of the profile.
        sure: how many of these pairs were placed surely, at both ends.
        moved: steps from the candidate's dependency forward along the data flow to the one that has a name.
    """

    name: str
    weight: str
    dependency: str
    coefficient: Decimal
    candidate: Candidate
    layers: int
    pairs: int
    sure: int
    moved: int = 0


@dataclass(frozen=True)
class Unnamed:
    """A candidate that has no place in the model, and why."""

    candidate: Candidate
    reason: Words


def name_candidates(
    candidates: Sequence[Candidate], step: Step, mapping: Mapping, workload: Workload, root: str, layers: str
) -> tuple[list[Named], list[Unnamed]]:
    """Name weight and dependency of every candidate.

    Args:
        candidates: of the analysis.
        step: the profile's step.
        mapping: of the step on the workload.
        workload: the traced step.
        root: FQN of the module that owns the layer list.
        layers: name of the list below it.
    """
    paths = Paths(root, layers)
    namer = _Namer(step, mapping, workload)
    named: list[Named] = []
    unnamed: list[Unnamed] = []
    for candidate in candidates:
        found, reason = _name(candidate, namer, paths)
        named += found
        if not found:
            unnamed.append(Unnamed(candidate, reason))
    return _distinct(named), unnamed


@dataclass(frozen=True)
class _Place:
    """A dependency with a name."""

    kernel: int
    text: str
    moved: int


class Paths:
    """FQNs to structural paths."""

    def __init__(self, root: str, layers: str) -> None:
        self._prefix = f"{root}." if root else ""
        self._layer = re.compile(rf"{re.escape(layers)}\.(\d+)\.(.+)\Z")
        self.layers = layers

    def split(self, fqn: str) -> tuple[int | None, str]:
        """(layer, path in it), or (None, path below the root or full FQN)."""
        path = fqn.removeprefix(self._prefix)
        found = self._layer.match(path)
        return (int(found[1]), found[2]) if found else (None, path)

    def pair(self, weight: str, dependency: str) -> tuple[str, str]:
        """Both as paths; layers as `{i}` of the dependency's layer."""
        port = ":input" if dependency.endswith(":input") else ""
        at, inside = self.split(dependency.removesuffix(":input"))
        of, path = self.split(weight.removesuffix(".weight"))
        if of is None:
            return path, (f"{self.layers}.{at}.{inside}" if at is not None else inside) + port
        if at is None:
            return f"{self.layers}.{of}.{path}", inside + port
        shift = of - at
        index = f"{{i{shift:+d}}}" if shift else "{i}"
        return f"{self.layers}.{index}.{path}", f"{self.layers}.{{i}}.{inside}{port}"


class _Namer:
    """Finds the module whose input or output a kernel makes."""

    def __init__(self, step: Step, mapping: Mapping, workload: Workload) -> None:
        self.step, self.workload = step, workload
        self.flow = Flow(workload)
        self._placed = {p.at: p for p in mapping.placed}
        self._at = {p.kernel: p.at for p in mapping.placed}
        self._outputs: dict[int, list[ModuleCall]] = {}
        self._inputs: dict[int, list[ModuleCall]] = {}
        for made in workload.calls.values():
            for call in made[:1]:  # a module that is called several times is no dependency
                if len(made) == 1 and call.output_kernel is not None:
                    self._outputs.setdefault(call.output_kernel, []).append(call)
                if len(made) == 1 and call.input_kernel is not None:
                    self._inputs.setdefault(call.input_kernel, []).append(call)

    def at_row(self, row: int) -> Placed | None:
        """The kernel of the model at a row of the profile."""
        at = self.step.at_row(row)
        return None if at is None else self._placed.get(at)

    def dependency(self, producer: int, reader: int) -> _Place | None:
        """The first kernel from `producer` on that has a name and whose result reaches `reader`.

        An earlier one would open another window: with the producer itself in it, which takes the bandwidth or did not
        leave enough of it.
        """
        later = [k for k in range(producer, reader) if k == producer or self.flow.flows(producer, k)]
        for moved, k in enumerate(later):
            text = self._name(k, reader) if self.flow.flows(k, reader) else ""
            if text:
                return _Place(k, text, moved)
        return None

    def _name(self, kernel: int, reader: int) -> str:
        """The innermost module whose output it is; else the innermost whose input it is and that is called in time."""
        made = self._outputs.get(kernel, [])
        if made:
            return max(made, key=lambda c: c.enter).fqn
        target = self.workload.kernels[reader].module
        takes = [c for c in self._inputs.get(kernel, []) if c.fqn != target]
        last = min((c.enter for c in self.workload.calls.get(target, ())), default=None)
        in_time = [c for c in takes if last is None or c.enter < last]
        return f"{max(in_time, key=lambda c: c.enter).fqn}:input" if in_time else ""


def _name(candidate: Candidate, namer: _Namer, paths: Paths) -> tuple[list[Named], Words]:
    votes: Counter[tuple[str, str, int]] = Counter()
    sure: Counter[tuple[str, str]] = Counter()
    unplaced = nameless = 0
    for target_row, dependency_row in candidate.pairs:
        target, dependency = namer.at_row(target_row), namer.at_row(dependency_row)
        if target is None or dependency is None:
            unplaced += 1
            continue
        place = namer.dependency(dependency.kernel, target.kernel)
        if place is None:
            nameless += 1
            continue
        reads = namer.workload.kernels[target.kernel].weights
        for read in reads:
            if read.stored_bytes >= _SMALL_SHARE * sum(r.stored_bytes for r in reads):
                pair = paths.pair(read.weight, place.text)
                votes[*pair, place.moved] += 1
                sure[pair] += target.sure == dependency.sure == "sure"
    one_layer = [key for key in votes if re.search(rf"(^|[. ]){re.escape(paths.layers)}\.\d", f"{key[0]} {key[1]}")]
    if one_layer and len(one_layer) == len(votes):
        where = one_layer[0][1]
        return [], {
            "en": f"its window begins in one numbered layer ({where}), and source is written for all layers",
            "zh": f"其窗口始于某一固定层({where}),而源码改写针对所有层",
        }
    votes = Counter({key: n for key, n in votes.items() if key not in one_layer})
    if not votes:
        every = len(candidate.pairs)
        if nameless >= unplaced:
            where = candidate.dependency.label
            return [], {
                "en": f"in {nameless} of {every} layers no module of the model makes a tensor after {where} and before "
                "the target",
                "zh": f"{every} 层中有 {nameless} 层:{where} 之后、目标之前,模型中没有模块产生张量",
            }
        return [], {
            "en": f"in {unplaced} of {every} layers target or dependency was not found in the model",
            "zh": f"{every} 层中有 {unplaced} 层:目标或依赖未在模型中找到",
        }
    share = Decimal(candidate.max_size) / Decimal(max(1, candidate.weight_bytes))
    coefficient = min(Decimal(1), share.quantize(_STEPS, ROUND_FLOOR))
    if not coefficient:
        return [], {"en": "less than 1 % of the weight fits", "zh": "能容纳的不足权重的 1 %"}
    chosen: dict[str, tuple[str, int]] = {}  # each weight once, with the dependency of most layers
    for (weight, dependency_path, moved), _ in votes.most_common():
        chosen.setdefault(weight, (dependency_path, moved))
    return [
        Named(
            target_name(weight),
            weight,
            dependency_path,
            coefficient,
            candidate,
            sum(n for (w, d, _), n in votes.items() if (w, d) == (weight, dependency_path)),
            len(candidate.pairs),
            sure[weight, dependency_path],
            moved,
        )
        for weight, (dependency_path, moved) in chosen.items()
    ], {}


def target_name(weight: str) -> str:
    """`layers.{i+1}.self_attn.0.q_a_proj` is `self_attn_0_q_a_proj_next`."""
    shift = re.search(r"\{i([+-]\d+)?\}", weight)
    words = re.sub(r"^[^{}]*\{[^}]*\}\.|\.weight$", "", weight)
    after = {None: "", "+1": "_next"}.get(shift[1] if shift else None, f"_{shift[1]}" if shift else "")
    return re.sub(r"\W+", "_", words).strip("_") + after.replace("+", "plus").replace("-", "minus")


def _distinct(named: Sequence[Named]) -> list[Named]:
    """Targets of one name get a number; of one weight and dependency only the first stays."""
    seen: set[tuple[str, str]] = set()
    names: Counter[str] = Counter()
    found = []
    for target in named:
        key = (target.weight, target.dependency)
        if key in seen:
            continue
        seen.add(key)
        names[target.name] += 1
        number = names[target.name]
        found.append(Named(**{**target.__dict__, "name": target.name if number == 1 else f"{target.name}_{number}"}))
    return found
