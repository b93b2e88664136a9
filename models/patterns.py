"""How structural paths are written: name modules and parameters of all decoder layers in one line.

A path is a dotted name whose segments may be a layer index with arithmetic (`{i}`, `{i+1}`), any one name (`*`) or
a set of indices (`[0,2-5]`). It is not a regular expression: `layers.1.*` does not match layer 10. `layers.{i}@mlp.up`
names the weights of a layer by what they are for.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_LITERAL = re.compile(r"[A-Za-z0-9_\-]+\Z")
_LAYER = re.compile(r"\{\s*i\s*(?:([+-])\s*(\d+)\s*)?\}\Z")
_ROLE = re.compile(r"[a-z_]+(\.[a-z_]+)*\Z")
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
    """A parsed path.

    Attributes:
        text: what the user wrote.
        segments: the parts before `@`.
        role: what stands after `@`; then the segments name a decoder layer. None without `@`.
    """

    text: str
    segments: tuple[Segment, ...] = field(compare=False)
    role: str | None = field(default=None, compare=False)

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
            if isinstance(segment, IndexSet) and not in_set(name, segment):
                return None
            names.append(name)
        return ".".join(names)


def parse_pattern(text: str) -> Pattern:
    """Parse a structural path.

    Raises:
        PatternError: empty, an empty segment, a segment that is none of the forms above, or a role of no layer.
    """
    text = text.strip()
    if not text:
        raise PatternError("the path is empty")
    path, at, role = text.partition("@")
    if at and not path:
        raise PatternError(f"`{text}` names no decoder layer: write layers.{{i}}{text}")
    segments = tuple(_parse_segment(part, text) for part in _split(path))
    if at and not _ROLE.match(role):
        raise PatternError(f"`{role}` in `{text}` is no role: write names separated by dots, like mlp.up")
    last = segments[-1]
    if at and (len(segments) < 2 or (isinstance(last, str) and not last.isdecimal())):
        raise PatternError(f"what stands before `@` in `{text}` is no decoder layer: write layers.{{i}}@{role}")
    return Pattern(text, segments, role if at else None)


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


def in_set(name: str, segment: IndexSet) -> bool:
    """Whether a name is one of the indices."""
    return name.isdecimal() and int(name) in segment.indices
