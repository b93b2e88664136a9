"""What structural paths (`models.patterns`) and roles mean in one model."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import nn

from models.patterns import (
    AnyName,
    IndexSet,
    LayerIndex,
    Pattern,
    PatternError,
    Segment,
    in_set,
    parse_pattern,
)

if TYPE_CHECKING:
    from models.roles import Roles

__all__ = ["AnyName", "IndexSet", "LayerIndex", "Match", "Names", "Pattern", "PatternError", "parse_pattern"]


@dataclass(frozen=True)
class Match:
    """A name of the model that a pattern stands for.

    Attributes:
        fqn: full name of the module or parameter.
        i: layer index: the value of `{i}`, or, without `{i}`, the layer that the name lies in; None outside the layers.
        captures: what each `*` and `[...]` stood for, in order.
    """

    fqn: str
    i: int | None
    captures: tuple[str, ...] = ()


class _Node(dict[str, "_Node"]):
    """Children by name."""


class Names:
    """Modules and parameters of one model by name, and what paths mean in it.

    Args:
        module: the whole model.
        root: FQN of the module that owns the decoder layer list.
        layers: name of that list below `root`.
        roles: finds the roles of the model; called when a path first names one.
    """

    def __init__(self, module: nn.Module, root: str, layers: str, roles: "Callable[[], Roles] | None" = None) -> None:
        self.root = root
        self._find_roles = roles
        self.layer_list = f"{root}.{layers}" if root else layers
        self.modules: Mapping[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
        self.parameters: Mapping[str, nn.Parameter] = dict(module.named_parameters(remove_duplicate=False))
        # A tied weight has several names; traces and overlap checks need one.
        first = {id(p): name for name, p in module.named_parameters()}
        self.canonical: Mapping[str, str] = {name: first[id(p)] for name, p in self.parameters.items()}
        self._tree = _Node()
        for name in (*self.modules, *self.parameters):
            node = self._tree
            for part in name.split(".") if name else ():
                node = node.setdefault(part, _Node())

    @cached_property
    def layer_count(self) -> int:
        node = self._node(self.layer_list)
        return len(node) if node is not None else 0

    @cached_property
    def roles(self) -> "Roles":
        """Roles of the model's weights and modules.

        Raises:
            RefusedError: the model can't be run to find them.
        """
        assert self._find_roles is not None, "these names were made without a way to find roles"
        return self._find_roles()

    def exists(self, fqn: str) -> bool:
        return fqn in self.modules or fqn in self.parameters

    def layer_of(self, fqn: str) -> int | None:
        """Index of the decoder layer that the name lies in, None outside."""
        prefix = self.layer_list + "."
        if not fqn.startswith(prefix):
            return None
        index = fqn[len(prefix) :].split(".", 1)[0]
        return int(index) if index.isdecimal() else None

    def locate(self, path: str) -> str | None:
        """Full name of a path without wildcards: relative to the root first, else as a full name."""
        for name in (f"{self.root}.{path}", path) if self.root else (path,):
            if self.exists(name):
                return name
        return None

    def meant(self, pattern: Pattern, i: int | None, captures: Sequence[str] = ()) -> tuple[str, ...]:
        """What a path stands for once its wildcards are known: one name, for a role all of the layer; () if none.

        Args:
            pattern: the path.
            i: layer index; None where there is none.
            captures: what the wildcards stand for, in order.
        """
        path = pattern.fill(i, captures)
        if path is None:
            return ()
        if pattern.role is not None:
            return tuple(m.fqn for m in self.expand(Pattern(path, tuple(path.split(".")), pattern.role)))
        name = self.locate(path)
        return (name,) if name is not None else ()

    def _layers_of(self, pattern: Pattern, i: int | None) -> list[tuple[int, tuple[str, ...]]]:
        """(layer, captures) of a path that names decoder layers; `layers` stands for the list whatever its name is."""
        *head, last = pattern.segments
        name = ".".join(str(s) for s in head)
        full = f"{self.root}.{name}" if self.root else name
        if name != "layers" and self.layer_list not in (name, full):
            return []
        if isinstance(last, LayerIndex):
            layer = -1 if i is None else i + last.offset
            return [(layer, ())] if 0 <= layer < self.layer_count else []
        if isinstance(last, str):
            return [(int(last), ())] if int(last) < self.layer_count else []
        indices = range(self.layer_count)
        return [(n, (str(n),)) for n in indices if isinstance(last, AnyName) or in_set(str(n), last)]

    def relative(self, fqn: str, i: int | None = None) -> str:
        """A name as a recipe writes it: relative to the root, layer indices near `i` as `{i}`, `{i+1}`, `{i-1}`."""
        path = fqn[len(self.root) + 1 :] if self.root and fqn.startswith(self.root + ".") else fqn
        layer = self.layer_of(fqn)
        if i is None or layer is None or abs(layer - i) > 1:
            return path
        symbol = {0: "{i}", 1: "{i+1}", -1: "{i-1}"}[layer - i]
        head = self.layer_list[len(self.root) + 1 :] if self.root else self.layer_list
        return f"{head}.{symbol}{path[len(head) + 1 + len(str(layer)) :]}"

    def expand(self, pattern: Pattern, i: int | None = None) -> list[Match]:
        """Everything that a pattern stands for, in the model's order.

        Args:
            pattern: the path.
            i: layer index for `{i}`; must be given if the pattern has one.
        """
        if pattern.role is not None:
            return [
                Match(fqn, i if pattern.uses_layer else layer, captures)
                for layer, captures in self._layers_of(pattern, i)
                for fqn in self.roles.of(layer, pattern.role)
            ]
        for start in dict.fromkeys((self.root, "")):
            node = self._node(start)
            if node is None:
                continue
            found = [
                Match(fqn, i if pattern.uses_layer else self.layer_of(fqn), captures)
                for fqn, captures in _walk(node, start, pattern.segments, i, ())
                if self.exists(fqn)
            ]
            if found:
                return found
        return []

    def explain_miss(self, pattern: Pattern, parameters: bool = True) -> tuple[str, list[str]]:
        """Why a pattern matches nothing.

        Args:
            pattern: the path.
            parameters: whether it may name a parameter; else only modules are suggested.

        Returns:
            A sentence saying where the path leaves the model and what is there, and the nearest paths that exist.
        """
        if pattern.role is not None:
            return self._explain_role(pattern), []
        depth, prefix, node = max(
            (self._deepest(start, pattern) for start in dict.fromkeys((self.root, ""))), key=lambda found: found[0]
        )
        below = _summary(node)
        missing = _segment_text(pattern, depth)
        where = f"`{prefix}`" if prefix else "the model"
        reason = f"`{pattern.text}` matches nothing: {where} has no `{missing}`; it has {below or 'nothing below it'}"
        return reason, self.nearest(pattern, parameters)

    def _explain_role(self, pattern: Pattern) -> str:
        if not any(self._layers_of(pattern, i) for i in range(self.layer_count)):
            path = pattern.text.partition("@")[0]
            list_name = self.relative(self.layer_list)
            return (
                f"`{pattern.text}` matches nothing: `{path}` names no decoder layer; write layers.{{i}}@{pattern.role} "
                f"(`layers` stands for `{list_name}`, with layers 0 to {self.layer_count - 1})"
            )
        there = ", ".join(f"{role} ({layers})" for role, (layers, _) in self.roles.counts().items())
        return (
            f"`{pattern.text}` matches nothing: no layer of this model has the role `{pattern.role}`; it has, with the "
            f"number of layers: {there or 'none'}"
        )

    def nearest(self, pattern: Pattern, parameters: bool = True, count: int = 3) -> list[str]:
        """Existing paths that read most like the pattern, written the way the pattern is."""
        candidates: dict[str, None] = {}
        # `x.weight` beside `x` is no news, unless that is what was tried.
        wanted = [
            n for n in self.parameters if n.endswith(pattern.text.rpartition(".")[2]) or not n.endswith(".weight")
        ]
        for fqn in (*self.modules, *(wanted if parameters else ())):
            layer = self.layer_of(fqn)
            if fqn and not (pattern.uses_layer and layer is not None):
                candidates[self.relative(fqn)] = None
                candidates[fqn] = None
            elif fqn and layer is not None:
                # `{i+1}` in the pattern: suggest `{i+1}` again.
                offset = next(s.offset for s in pattern.segments if isinstance(s, LayerIndex))
                candidates[self.relative(fqn, layer - offset if abs(offset) <= 1 else layer)] = None
        return difflib.get_close_matches(pattern.text, list(candidates), n=count, cutoff=0.6)

    def _node(self, fqn: str) -> _Node | None:
        node: _Node | None = self._tree
        for part in fqn.split(".") if fqn else ():
            node = node.get(part) if node is not None else None
        return node

    def _deepest(self, start: str, pattern: Pattern) -> tuple[int, str, _Node]:
        """How many segments exist, by any layer index; an example name of that part, and its node."""
        node = self._node(start)
        best = (0, start, node if node is not None else self._tree)
        if node is None:
            return best
        indices: Iterable[int | None] = range(self.layer_count) if pattern.uses_layer else (None,)
        for i in indices:
            for depth in range(len(pattern.segments), best[0], -1):
                name = next((n for n, _ in _walk(node, start, pattern.segments[:depth], i, ())), None)
                if name is not None:
                    found = self._node(name)
                    assert found is not None
                    best = (depth, name, found)
                    break
        return best


def _walk(
    node: _Node, name: str, segments: tuple[Segment, ...], i: int | None, captures: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    if not segments:
        yield name, captures
        return
    head, rest = segments[0], segments[1:]
    if isinstance(head, str | LayerIndex):
        key = head if isinstance(head, str) else str((i if i is not None else -1) + head.offset)
        if key in node:
            yield from _walk(node[key], f"{name}.{key}" if name else key, rest, i, captures)
        return
    for key, child in node.items():
        if isinstance(head, AnyName) or in_set(key, head):
            yield from _walk(child, f"{name}.{key}" if name else key, rest, i, (*captures, key))


def _segment_text(pattern: Pattern, index: int) -> str:
    parts = pattern.text.split(".")
    return parts[min(index, len(parts) - 1)]


def _summary(node: _Node) -> str:
    names = list(node)
    if names and all(n.isdecimal() for n in names):
        return f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    shown = ", ".join(names[:12])
    return f"{shown}, and {len(names) - 12} more" if len(names) > 12 else shown
