"""The source realisation of a plan: prefetch calls written into the modeling file."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from transforms.placing import Refusals, Statement, place
from transforms.plan import Plan
from transforms.plumbing import FileRewrite
from transforms.reaching import NotPlaceable
from transforms.recording import Recording, record
from transforms.siblings import load_sibling
from transforms.source_file import lines_of


@dataclass(frozen=True)
class SourceResult:
    """A rewritten modeling file.

    Attributes:
        before, after: the whole text.
        diff: unified diff, `""` if nothing changed; `patch -p1` applies it above the package, `patch -p1 -R` takes it back.
        path: the original file.
    """

    before: str
    after: str
    diff: str
    path: Path


def prefetch_source(loaded: Any, plan: Plan, recording: Recording | None = None) -> SourceResult:
    """Write the plan's prefetch calls into the source of the model.

    Args:
        loaded: a tiny `LoadedModel`; the plan's FQNs are those of its modules, the sizes may be of the full model.
        plan: what to prefetch.
        recording: of the same model, to reuse it for several plans.

    Raises:
        RefusedError: some entry can't be written; holds the reasons for all of them, and nothing has been written.
    """
    recording = recording or record(loaded)
    before = recording.source.text
    after = _rewrite(recording, plan) if plan.prefetch else before
    name = recording.python_module.__name__.replace(".", "/") + ".py"
    return SourceResult(before, after, unified_diff(before, after, name), recording.source.path)


def load_rewritten(loaded: Any, result: SourceResult, directory: Path) -> ModuleType:
    """Import the rewritten file beside the original; see `siblings.load_sibling`."""
    return load_sibling(loaded.python_module, result.after, directory)


def unified_diff(before: str, after: str, name: str) -> str:
    """Like `git diff`, files without a final line end included."""
    lines = difflib.unified_diff(lines_of(before), lines_of(after), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _rewrite(recording: Recording, plan: Plan) -> str:
    statements = place(recording, plan)
    refusals = Refusals()
    file = FileRewrite(recording)
    groups: dict[object, list[Statement]] = {}
    for statement in statements:
        spot = statement.spot
        groups.setdefault((spot.function, spot.site, spot.where, spot.port), []).append(statement)
    for group in sorted(groups.values(), key=lambda g: g[0].spot.place):
        try:
            file.prefetch(group)
        except NotPlaceable as reason:
            for entry in (entry for statement in group for entry in statement.entries):
                refusals.add(entry, reason)
    try:
        file.check()
        text = file.text()
    except NotPlaceable as reason:
        refusals.add(plan.prefetch[0], reason)
    refusals.raise_if_any()
    return text
