"""Reasons why entries of a plan can't be placed, collected over all of them."""

import re

from models.problems import Problem, RefusedError
from transforms.plan import Prefetch, Scope


class Refusals:
    """Collects reasons; the same reason for several layers is one problem."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[str, list[int]]] = {}

    def add(self, entry: Prefetch, reason: object) -> None:
        text = str(reason)
        key = (entry.target, re.sub(r"\d+", "#", text))
        self._found.setdefault(key, (text, []))[1].append(entry.layer)

    def problems(self) -> list[Problem]:
        problems = []
        for (target, _), (reason, layers) in self._found.items():
            where = f"layer {layers[0]}" + (f" and {len(layers) - 1} more" if len(layers) > 1 else "")
            problems.append(
                Problem(
                    "error",
                    "not-placeable",
                    f"{target} ({where}): {reason}",
                    "Choose another dependency for this target, leave it out, or use transform=wrap.",
                    f"recipe.prefetch.targets.{target}",
                )
            )
        return problems

    def raise_if_any(self) -> None:
        if self._found:
            raise RefusedError(self.problems())


class ScopeRefusals:
    """Collects reasons; the same reason for the scopes of several layers is one problem."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[str, list[str]]] = {}

    def add(self, scope: Scope, reason: object) -> None:
        key = (re.sub(r"\d+", "#", scope.label), re.sub(r"\d+", "#", str(reason)))
        self._found.setdefault(key, (str(reason), []))[1].append(scope.label)

    def problems(self) -> list[Problem]:
        return [
            Problem(
                "error",
                "not-placeable",
                f"scope {labels[0]}{f' and {len(labels) - 1} more' if len(labels) > 1 else ''}: {reason}",
                "Choose another strategy, other first and last modules, or use transform=wrap.",
                "recipe.superkernel",
            )
            for reason, labels in self._found.values()
        ]
