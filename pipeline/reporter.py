"""Collects problems and finds the file and line that each one belongs to."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from models.problems import Problem
from pipeline.yaml_source import MISSING, YamlSource


class Reporter:
    """A growing list of problems of one configuration group.

    Args:
        source: the file behind the group; None if there is none (tests, command line only).
        data: the composed group, to tell values of the file from values of the command line.
    """

    def __init__(self, source: YamlSource | None, data: Any = None) -> None:
        self.source = source
        self.data = data
        self.problems: list[Problem] = []

    def error(self, code: str, key: str, message: str, fix: str = "") -> None:
        """Report what refuses the run."""
        self._add("error", code, key, message, fix)

    def warn(self, code: str, key: str, message: str, fix: str = "") -> None:
        """Report what is shown beside the result."""
        self._add("warning", code, key, message, fix)

    def overridden(self, key: str) -> bool:
        """Whether the file holds no such value, or another one: then it comes from the command line."""
        value = _look_up(self.data, key.partition(".")[2])
        return self.source is not None and value is not MISSING and self.source.place(key, value)[0] is None

    def _add(self, severity: Literal["error", "warning"], code: str, key: str, message: str, fix: str) -> None:
        file, line = self._place(key)
        if file is None and code == "missing-key":
            # A key that is not there has no line: its parent's is the nearest.
            file, line = self._place(key.rpartition(".")[0])
        self.problems.append(Problem(severity, code, message, fix, key, file, line))

    def _place(self, key: str) -> tuple[str | None, int | None]:
        if self.source is None:
            return None, None
        value = _look_up(self.data, key.partition(".")[2]) if "." in key else self.data
        # Of a mapping only the position matters: something below it may have been overridden.
        return self.source.place(key, MISSING if isinstance(value, Mapping) else value)


def located(problem: Problem, config: Mapping[str, Any], files: Mapping[str, Path]) -> Problem:
    """Give a problem that names only its group's file the line, or no file if the value is the command line's.

    Args:
        problem: from a reader that knows keys and the file, but not the text of it.
        config: the composed configuration.
        files: group -> YAML file.
    """
    group = (problem.key or "").partition(".")[0]
    if not problem.key or problem.file is None or problem.line is not None or group not in files:
        return problem
    source = YamlSource(files[group], group)
    value = _look_up(config, problem.key)
    if value is MISSING:
        if source.line(problem.key) is not None:  # deleted on the command line
            return replace(problem, file=None)
        _, line = source.place(problem.key.rpartition(".")[0])
        return replace(problem, line=line)
    file, line = source.place(problem.key, MISSING if isinstance(value, Mapping) else value)
    return replace(problem, file=file, line=line)


def _look_up(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part, MISSING) if isinstance(config, Mapping) else MISSING
    return config
