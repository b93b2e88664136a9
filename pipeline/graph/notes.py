"""What one should know about a graph's scopes and what fails nothing: noted per scope, told per pattern of layers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.fusable import why_not_zh
from pipeline.graph.findings import Finding
from transforms.plan import Scope

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")  # the first one of a module's name is its layer


@dataclass(frozen=True)
class Note(Finding):
    """A remark on one scope.

    Attributes:
        scope: which.
        what: operator inside, or `prefetch`.
        why: what follows from it, in words; "" if nothing.
        count: nodes of it.
    """

    scope: Scope
    what: str
    why: str
    count: int


@dataclass(frozen=True)
class NoteGroup:
    """Equal notes of the scopes that differ in their layer only.

    Attributes:
        code, what, why: as in `Note`.
        label, first, last: of the scopes, with `{i}` for the layer.
        count: nodes in all scopes together.
        layers: of the scopes, in plan order; empty for a scope outside any layer.
    """

    code: str
    what: str
    why: str
    label: str
    first: str
    last: str
    count: int
    layers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.count} x {self.what} inside scope {self.label}" + (f" ({self.why})" if self.why else "")

    @property
    def zh(self) -> str:
        """The same in Chinese."""
        why = f"({why_not_zh(self.what)})" if self.why else ""
        return f"scope {self.label} 内有 {self.count} 个 {self.what}{why}"

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": str(self),
            "scope": self.label,
            "first": self.first,
            "last": self.last,
            "count": self.count,
            "layers": _ranges(self.layers),
        }


def grouped(notes: Sequence[Note]) -> tuple[NoteGroup, ...]:
    """One group per kind and pattern, in the order in which they come up."""
    found: dict[tuple[str, ...], NoteGroup] = {}
    for note in notes:
        layer, label, first, last = _pattern(note.scope)
        key = (note.code, note.what, note.why, label, first, last)
        group = found.get(key) or NoteGroup(*key, 0)
        layers = group.layers if layer is None else (*group.layers, layer)
        found[key] = replace(group, count=group.count + note.count, layers=layers)
    return tuple(found.values())


def _pattern(scope: Scope) -> tuple[int | None, str, str, str]:
    """Layer, and label, first and last module with `{i}` in its place."""
    number = _NUMBER.search(scope.first)
    if number is None:
        return None, scope.label, scope.first, scope.last
    layer = int(number[0])

    def index(found: re.Match[str]) -> str:
        ahead = int(found[0]) - layer
        return f"{{i{ahead:+d}}}" if ahead else "{i}"

    label = re.sub(rf"(?<![0-9]){layer}(?![0-9])", "{i}", scope.label, count=1)
    return layer, label, _NUMBER.sub(index, scope.first, count=1), _NUMBER.sub(index, scope.last, count=1)


def _ranges(numbers: Sequence[int]) -> str:
    """`0-27`, `0, 2-3`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
