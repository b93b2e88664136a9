"""One target of a recipe at a time: its layers, weights, dependencies and bytes, and what is wrong with it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Protocol

from torch import nn

from models.paths import LayerIndex, Match, Names, Pattern
from models.roles import names_of
from models.workload import Workload
from pipeline.legality import Flow, Illegal, Placement, check_dependency, check_target, kind_of_module
from pipeline.planned_sizes import PlannedSizes, telling_kinds
from pipeline.recipe import Recipe, Target
from pipeline.reporter import Reporter
from pipeline.sizes_text import format_size
from transforms.plan import Prefetch

# What quantised layers call the weight that a MatMul reads.
_WEIGHT_NAMES = ("weight", "qweight", "weight_packed")


class Resolvable(Protocol):
    """What resolving needs of a `LoadedModel`."""

    module: nn.Module
    root: str
    layers: str
    spec: Any
    deployment: Any
    exe_mode: str


@dataclass(frozen=True)
class Entry:
    """One prefetch of the plan and where it stands in the step."""

    prefetch: Prefetch
    place: Placement


class TargetResolver:
    """Resolves targets one by one; problems go to the report, once per target and cause."""

    def __init__(
        self,
        recipe: Recipe,
        loaded: Resolvable,
        workload: Workload,
        report: Reporter,
        sizes: PlannedSizes | None,
    ) -> None:
        self.recipe, self.loaded, self.workload, self.report, self.sizes = recipe, loaded, workload, report, sizes
        self.names = names_of(loaded)
        self.flow = Flow(workload)
        self._full: Names | None = None
        self._kinds = telling_kinds(self.names) if sizes is not None else {}

    def target(self, target: Target) -> tuple[list[Entry], int]:
        """Entries of one target, in layer order, and the number of layers skipped."""
        if target.dependency.wildcards > target.weight.wildcards:
            self.report.error(
                "ambiguous-wildcard",
                f"{target.key}.dependency",
                f"`{target.dependency.text}` has more `*` or `[...]` than the weight `{target.weight.text}`",
                "Each wildcard of the dependency stands for what the wildcard at the same place of the weight matched; "
                "write a name instead.",
            )
            return [], 0
        entries: list[Entry] = []
        skipped = 0
        told: set[str] = set()
        problems: dict[str, tuple[str, Illegal, int]] = {}
        for i, match in self._candidates(target):
            found = self.names.meant(target.dependency, i, match.captures) if match is not None else ()
            # A block that layers share has one weight, which is copied for the first of them.
            again = target.weight.role is not None and match is not None and match.fqn in told
            if match is None or not found or again:
                skipped += 1
                continue
            told.add(match.fqn)
            result = self._nearest_entry(target, match, found, i)
            if isinstance(result, Entry):
                entries.append(result)
                continue
            part, illegal = result
            known = problems.get(illegal.code, (part, illegal, 0))
            problems[illegal.code] = (known[0], known[1], known[2] + 1)
        for part, illegal, count in problems.values():
            where = f" ({count} layers)" if count > 1 else ""
            if self.recipe.generic and part in ("weight", "dependency"):
                skipped += count
                if self.sizes is None:
                    message = f"skipped{where}: {illegal.message}"
                    self.report.warn("generic-skipped", f"{target.key}.{part}", message, illegal.fix)
                continue
            owner = "recipe.prefetch" if part == "coefficient" and target.coefficient is None else target.key
            self.report.error(illegal.code, f"{owner}.{part}", illegal.message + where, illegal.fix)
        if not entries and not problems:
            self._nothing_matched(target)
        elif entries:
            self._remarks(target, entries)
        return entries, skipped

    def _candidates(self, target: Target) -> Iterator[tuple[int | None, Match | None]]:
        """(layer index, weight) pairs; the weight is None where a layer has none."""
        pattern, layers = target.weight, range(self.names.layer_count)
        later = _offset(pattern) > _offset(target.dependency)
        if pattern.uses_layer:
            for i in layers:
                found = self.names.expand(pattern, i)
                if pattern.role is not None and later:
                    found = self._first_part(found)
                yield from ((i, match) for match in found)
                if not found:
                    yield i, None
            return
        for match in self.names.expand(pattern):
            if match.i is None and target.dependency.uses_layer:
                yield from ((i, match) for i in layers)
            else:
                yield match.i, match

    def _first_part(self, matches: list[Match]) -> list[Match]:
        """Of a layer with several attentions or feed-forwards, the weights of the first: next to the layer before."""
        parts = [self.names.roles.parts.get(match.fqn, 0) for match in matches]
        return [match for match, part in zip(matches, parts, strict=True) if part == min(parts)]

    def _nearest_entry(
        self, target: Target, match: Match, dependencies: tuple[str, ...], i: int | None
    ) -> Entry | tuple[str, Illegal]:
        """The entry with the dependency that ends last before the weight is read; a role may name several."""
        if target.dependency.role is not None:
            dependencies = tuple(dict.fromkeys(map(self._called, dependencies)))
        results = [self._entry(target, match, dependency, i) for dependency in dependencies]
        legal = [result for result in results if isinstance(result, Entry)]
        return max(legal, key=lambda e: (e.place.producer, -e.place.event)) if legal else results[0]

    def _called(self, fqn: str) -> str:
        """The module itself or, if its weight goes into something else, the module around it that runs with it."""
        layer, name = self.names.layer_of(fqn), fqn
        while name not in self.workload.calls and layer is not None:
            name = name.rpartition(".")[0]
            if self.names.layer_of(name) is None or name == f"{self.names.layer_list}.{layer}":
                return fqn
        return name

    def _entry(self, target: Target, match: Match, dependency: str, i: int | None) -> Entry | tuple[str, Illegal]:
        weight = self._parameter(match.fqn, i)
        if isinstance(weight, Illegal):
            return "weight", weight
        reader = check_target(self.names, self.flow, weight, i)
        if isinstance(reader, Illegal):
            return "weight", reader
        place = check_dependency(self.names, self.flow, dependency, target.port, reader, i)
        if isinstance(place, Illegal):
            return "dependency", place
        size = self._size(target, weight)
        if isinstance(size, Illegal):
            return ("offset" if size.code == "offset-beyond-weight" else "coefficient"), size
        theoretical, max_size = size
        layer = i if i is not None else self.names.layer_of(dependency)
        prefetch = Prefetch(
            target.name,
            weight,
            dependency,
            target.port,
            layer if layer is not None else -1,
            theoretical,
            max_size,
            target.offset,
        )
        return Entry(prefetch, place)

    def _parameter(self, fqn: str, i: int | None) -> str | Illegal:
        """The parameter that a path names: itself, or the module's weight."""
        names = self.names
        if fqn in names.parameters:
            return names.canonical[fqn]
        label = names.relative(fqn, i)
        module = names.modules[fqn]
        own = {n: p for n, p in module.named_parameters(recurse=False)}
        if name := next((n for n in _WEIGHT_NAMES if n in own), None):
            return names.canonical[f"{fqn}.{name}"]
        matrices = [n for n, p in own.items() if p.dim() >= 2]
        if len(matrices) == 1:
            return names.canonical[f"{fqn}.{matrices[0]}"]
        if kind := kind_of_module(fqn, module):
            return Illegal(
                "not-a-target",
                f"`{label}` is a {kind} ({type(module).__name__}), not a MatMul",
                "Prefetch the weight of a MatMul; such modules are good dependencies instead.",
            )
        if matrices:
            listed = ", ".join(f"`{label}.{n}`" for n in matrices)
            return Illegal("several-weights", f"`{label}` holds several weights", f"Name one of {listed}.")
        below = [p for p in names.parameters if p.startswith(f"{fqn}.") and names.parameters[p].dim() >= 2]
        holders = dict.fromkeys(names.relative(_holder(p), i) for p in below)
        fix = f"Name one of {', '.join(f'`{h}`' for h in list(holders)[:6])}." if holders else "Name a linear layer."
        return Illegal("no-weight", f"`{label}` ({type(module).__name__}) has no weight of its own", fix)

    def _size(self, target: Target, weight: str) -> tuple[int, int] | Illegal:
        """(theoretical, max_size), bytes."""
        if self.sizes is not None and (planned := self.sizes.find(target.name, weight, self.names, self._kinds)):
            return planned
        parameter = self.names.parameters[weight]
        theoretical = self.workload.weight_bytes.get(weight, parameter.numel() * parameter.element_size())
        if target.offset >= theoretical:
            return Illegal(
                "offset-beyond-weight",
                f"offset {format_size(target.offset)} is not inside the weight of {format_size(theoretical)}",
                "Choose a smaller offset.",
            )
        size = target.max_size
        if size is None:
            size = int((theoretical * self.coefficient(target)).to_integral_value(ROUND_FLOOR))
        if size == 0:
            return Illegal(
                "out-of-range",
                f"the coefficient {self.coefficient(target)} leaves 0 of {format_size(theoretical)}",
                "Choose a larger coefficient.",
            )
        return theoretical, min(size, theoretical - target.offset)

    def coefficient(self, target: Target) -> Decimal:
        """The share in force, if no explicit size beats it."""
        return target.coefficient if target.coefficient is not None else self.recipe.prefetch.coefficient

    def _remarks(self, target: Target, entries: list[Entry]) -> None:
        if self.sizes is not None:
            return
        if target.method is not None:
            self.report.warn(
                "in-ignored",
                f"{target.key}.in",
                "`in` is for trees that can't run; this model runs, so its calls are found by running it",
                "Leave it out.",
            )
        entry = min((e.prefetch for e in entries), key=lambda p: p.theoretical_size)
        asked = target.max_size
        if asked is None:
            asked = int((entry.theoretical_size * self.coefficient(target)).to_integral_value(ROUND_FLOOR))
        else:
            self.report.warn(
                "coefficient-ignored",
                f"{target.key}.max_size",
                f"the explicit size {format_size(asked)} beats the coefficient {self.coefficient(target)}",
                "Leave out max_size to size by the coefficient.",
            )
        if asked > entry.max_size:
            rest = f" from offset {format_size(target.offset)}" if target.offset else ""
            self.report.warn(
                "size-clamped",
                f"{target.key}.{'max_size' if target.max_size is not None else 'offset'}",
                f"{format_size(asked)} is more than the weight `{self.names.relative(entry.weight)}` has{rest}: "
                f"clamped to {format_size(entry.max_size)}",
                f"Write {format_size(entry.max_size)} or less, or leave out max_size.",
            )

    def _nothing_matched(self, target: Target) -> None:
        weights = [m for i, m in self._candidates(target) if m is not None]
        part, pattern = ("dependency", target.dependency) if weights else ("weight", target.weight)
        if self.sizes is not None:
            if not self.sizes.has(target.name):
                return  # The full-size model does not have it either, and that was told there.
            # The tiny model has fewer layers.
            self.report.warn(
                "not-in-tiny",
                target.key,
                f"the tiny model has {self.names.layer_count} layers and none for target `{target.name}`: "
                "the numerics rung does not exercise it",
            )
            return
        role = self.loaded.deployment.role
        if role != "all" and ever(self._role_all(), pattern):
            self.report.warn(
                "role-skipped",
                f"{target.key}.{part}",
                f"skipped: role `{role}` does not have `{pattern.text}`",
                "Leave the target to a deployment of role `all` or of the other side, or exclude it by `only`.",
            )
            return
        if ever(self.names, pattern):
            self.report.error(
                "no-match",
                f"{target.key}.dependency",
                f"`{target.weight.text}` and `{target.dependency.text}` never exist for the same layer "
                f"(the model has {self.names.layer_count} layers)",
                "Check the layer arithmetic, e.g. weight layers.{i+1}... and dependency layers.{i}...",
            )
            return
        reason, near = self.names.explain_miss(pattern, parameters=part == "weight")
        if pattern.role is not None and self.recipe.generic:
            message = f"skipped: no layer of this model has the role `{pattern.role}`"
            self.report.warn("no-such-role", f"{target.key}.{part}", message)
            return
        if pattern.role is not None:
            self.report.error("no-such-role", f"{target.key}.{part}", reason, "docs/roles.md explains them.")
            return
        fix = f"Did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else "See the model's names with `list`."
        self.report.error("no-match", f"{target.key}.{part}", reason, fix)

    def _role_all(self) -> Names:
        """Names of the same model in one piece, loaded only to tell a missing role from a typo."""
        if self._full is None:
            self._full = names_of_role_all(self.loaded)
        return self._full


def names_of_role_all(loaded: Any) -> Names:
    """Names of the model that serves both roles, full or tiny like `loaded`."""
    from models.loading import load

    whole = load(loaded.spec, replace(loaded.deployment, role="all"), loaded.exe_mode, loaded.size)
    return names_of(whole)


def ever(names: Names, pattern: Pattern) -> bool:
    """Whether a pattern means anything in any layer."""
    indices: Any = range(names.layer_count) if pattern.uses_layer else (None,)
    return any(names.expand(pattern, i) for i in indices)


def _offset(pattern: Pattern) -> int:
    return next((s.offset for s in pattern.segments if isinstance(s, LayerIndex)), 0)


def _holder(parameter: str) -> str:
    owner, _, name = parameter.rpartition(".")
    return owner if name in _WEIGHT_NAMES else parameter
