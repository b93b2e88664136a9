"""A before / after pair that documents a transform and is executed as its test."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """What a transform does to a small file.

    Attributes:
        title: what it shows.
        before: a whole file with a `Model(config)` that owns `layers`; for a wrap, the calls of a decode step.
        after: the file, or the calls, after the transform.
        targets: `(weight, dependency)` below a layer, with `{i}` for its index; a dependency may end in `:input`.
        scopes: `(label, first, last)` likewise.
    """

    title: str
    before: str
    after: str
    targets: tuple[tuple[str, str], ...] = ()
    scopes: tuple[tuple[str, str, str], ...] = ()
