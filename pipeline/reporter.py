"""Collects problems and finds the file and line that each one belongs to."""

import difflib
from collections.abc import Iterable
from typing import Any

from models.problems import Problem
from pipeline.yaml_source import MISSING, YamlSource


class Reporter:
    """A growing list of problems of one configuration group.

    Args:
        source: the file behind the group; None if there is none (tests, command line only).
    """

    def __init__(self, source: YamlSource | None) -> None:
        self.source = source
        self.problems: list[Problem] = []

    def error(self, code: str, key: str, message: str, fix: str = "", value: Any = MISSING) -> None:
        """Report what refuses the run; `value` tells a value of the file from one of the command line."""
        self._add("error", code, key, message, fix, value)

    def warn(self, code: str, key: str, message: str, fix: str = "", value: Any = MISSING) -> None:
        """Report what is shown beside the result."""
        self._add("warning", code, key, message, fix, value)

    def _add(self, severity: Any, code: str, key: str, message: str, fix: str, value: Any) -> None:
        file, line = self.source.place(key, value) if self.source is not None else (None, None)
        if file is None and code == "missing-key" and self.source is not None:
            # A key that is not there has no line: its parent's is the nearest.
            file, line = self.source.place(key.rpartition(".")[0])
        self.problems.append(Problem(severity, code, message, fix, key, file, line))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known word, or the known words if none is near."""
    known = [str(k) for k in known]
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"Did you mean `{near[0]}`?"
    return f"Known: {', '.join(known)}." if known else ""
