"""What a transform gives back to whoever verifies, measures or compares it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

Built = nn.Module | AbstractContextManager[nn.Module]


@dataclass(frozen=True)
class SourceResult:
    """A rewritten modeling file.

    Attributes:
        before, after: the whole text.
        diff: unified diff, `""` if nothing changed. `patch -p1` applies it above the package, `-R` takes it back.
        path: the original file.
        name: the file as the diff names it, relative to the folder above its package.
        notes: what a reader of the diff should know about the file.
    """

    before: str
    after: str
    diff: str
    path: Path
    name: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Realisation:
    """A plan realised on a model.

    Attributes:
        build: with the switch on or off, and a directory for rewritten files, the transformed model, or a context
            manager that lends and restores it.
        source: the rewritten file, None for a transform that needs no source.
    """

    build: Callable[[bool, Path], Built]
    source: SourceResult | None = None
