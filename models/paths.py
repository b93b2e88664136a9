"""Structural paths: name modules and parameters of all decoder layers in one line.

A path is a dotted name whose segments may be a layer index with arithmetic (`{i}`, `{i+1}`), any one name (`*`) or
a set of indices (`[0,2-5]`). It is not a regular expression: `layers.1.*` does not match layer 10.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

_LITERAL = re.compile(r"[A-Za-z0-9_\-]+\Z")
_LAYER = re.compile(r"\{\s*i\s*(?:([+-])\s*(\d+)\s*)?\}\Z")
_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?\Z")


class PatternError(ValueError):
    """The text is not a structural path; the message says which part and what is allowed."""


@dataclass(frozen=True)
class LayerIndex:
    """`{i}`, `{i+1}`, `{i-1}`."""

    offset: int


@dataclass(frozen=True)
class AnyName:
    """`*`: any one segment."""


@dataclass(frozen=True)
class IndexSet:
    """`[0,2-5]`: one of these indices."""

    indices: frozenset[int]


Segment = str | LayerIndex | AnyName | IndexSet


@dataclass(frozen=True)
class Pattern:
    """A parsed path; `text` is what the user wrote."""

    text: str
    segments: tuple[Segment, ...] = field(compare=False)

    @property
    def uses_layer(self) -> bool:
        return any(isinstance(s, LayerIndex) for s in self.segments)

    @property
    def wildcards(self) -> int:
        """Number of `*` and `[...]` segments."""
        return sum(isinstance(s, AnyName | IndexSet) for s in self.segments)

    def fill(self, i: int | None, captures: Sequence[str] = ()) -> str | None:
        """The one name that the pattern stands for.

        Args:
            i: layer index; None where there is none.
            captures: what the wildcards stand for, in order; at least `wildcards` of them.

        Returns:
            The dotted name; None if a layer index is negative or unknown, or a capture is not in the set.
        """
        names: list[str] = []
        remaining = iter(captures)
        for segment in self.segments:
            if isinstance(segment, str):
                names.append(segment)
                continue
            if isinstance(segment, LayerIndex):
                if i is None or i + segment.offset < 0:
                    return None
                names.append(str(i + segment.offset))
                continue
            name = next(remaining)
            if isinstance(segment, IndexSet) and not _in_set(name, segment):
                return None
            names.append(name)
        return ".".join(names)


def parse_pattern(text: str) -> Pattern:
    """Parse a structural path.

    Raises:
        PatternError: empty, an empty segment, or a segment that is none of the forms above.
    """
    if not text.strip():
        raise PatternError("the path is empty")
    return Pattern(text.strip(), tuple(_parse_segment(part, text.strip()) for part in _split(text.strip())))


def _split(text: str) -> list[str]:
    parts = text.split(".")
    if "" in parts:
        raise PatternError(f"`{text}` has an empty part: write names separated by single dots")
    return parts


def _parse_segment(part: str, text: str) -> Segment:
    if part == "*":
        return AnyName()
    if match := _LAYER.match(part):
        return LayerIndex(int(f"{match[1] or '+'}{match[2] or 0}"))
    if part.startswith("[") and part.endswith("]"):
        return IndexSet(_parse_set(part, text))
    if _LITERAL.match(part):
        return part
    raise PatternError(
        f"`{part}` in `{text}` is neither a name, an index, a layer index like {{i}} or {{i+1}}, `*`, "
        "nor a set like [0,2-5]; regular expressions and partial wildcards are not supported"
    )


def _parse_set(part: str, text: str) -> frozenset[int]:
    indices: set[int] = set()
    for item in part[1:-1].split(","):
        match = _RANGE.match(item)
        if match is None:
            raise PatternError(f"`{part}` in `{text}` is not a set of indices: write numbers and ranges, like [0,2-5]")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise PatternError(f"the range {item.strip()} in `{text}` runs backwards: write {high}-{low}")
        if high - low > 100_000:
            raise PatternError(f"the range {item.strip()} in `{text}` is larger than any model")
        indices.update(range(low, high + 1))
    return frozenset(indices)


def _in_set(name: str, segment: IndexSet) -> bool:
    return name.isdecimal() and int(name) in segment.indices


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
    """

    def __init__(self, module: nn.Module, root: str, layers: str) -> None:
        self.root = root
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
        depth, prefix, node = max(
            (self._deepest(start, pattern) for start in dict.fromkeys((self.root, ""))), key=lambda found: found[0]
        )
        below = _summary(node)
        missing = _segment_text(pattern, depth)
        where = f"`{prefix}`" if prefix else "the model"
        reason = f"`{pattern.text}` matches nothing: {where} has no `{missing}`; it has {below or 'nothing below it'}"
        return reason, self.nearest(pattern, parameters)

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
        if isinstance(head, AnyName) or _in_set(key, head):
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
