"""The source realisation of a whole plan: prefetch calls and SuperKernel scopes written into the modeling file."""

import difflib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from models.problems import Problem, RefusedError
from transforms.levers import PREFETCH, SUPERKERNEL
from transforms.placing import place
from transforms.plan import Plan
from transforms.plumbing import FileRewrite
from transforms.realisation import Realisation, SourceResult
from transforms.recording import Recording, record
from transforms.refusals import Refusals, ScopeRefusals
from transforms.scoping import ScopeStatement, place_scopes
from transforms.siblings import load_sibling
from transforms.source_file import lines_of
from transforms.statements import Statement
from transforms.telling import NotPlaceable

_BANNER_CHARACTERS = 2000
_START, _END = 0.25, 0.5  # of a scope: behind a prefetch before a call (0), before a prefetch after a call (1)


def rewrite(loaded: Any, plan: Plan, recording: Recording | None = None) -> SourceResult:
    """Write the plan into the source of the model.

    Args:
        loaded: a tiny `LoadedModel`; the plan's FQNs are those of its modules, the sizes may be of the full model.
        plan: what to prefetch, and which scopes to open.
        recording: of the same model, to reuse it for several plans.

    Raises:
        RefusedError: some entry can't be written; holds the reasons for all of them, and nothing has been written.
    """
    recording = recording or record(loaded)
    before = recording.source.text
    after = _rewritten(recording, plan) if plan.prefetch or plan.scopes else before
    name = recording.python_module.__name__.replace(".", "/") + ".py"
    return SourceResult(before, after, unified_diff(before, after, name), recording.source.path, name, _notes(before))


def load_rewritten(loaded: Any, result: SourceResult, directory: Path) -> ModuleType:
    """Import the rewritten file beside the original; see `siblings.load_sibling`."""
    return load_sibling(loaded.python_module, result.after, directory)


def realise(loaded: Any, plan: Plan, recording: Recording | None = None) -> Realisation:
    """Rewrite now; load, and build with the switches of the plan's levers on or off, when asked to; see `rewrite`."""
    result = rewrite(loaded, plan, recording)
    rewritten: list[ModuleType] = []  # loaded when it is first needed: that is the *compiles* rung's business

    def build(enabled: bool, directory: Path) -> nn.Module:
        if not rewritten:
            rewritten.append(load_rewritten(loaded, result, directory))
        return loaded.rebuild(rewritten[0], **switches(plan, enabled))

    return Realisation(build, result)


def switches(plan: Plan, enabled: bool) -> dict[str, bool]:
    """The configuration's switches: on for the levers that the plan has, if enabled."""
    return {
        "enable_prefetch": enabled and bool(plan.prefetch),
        "enable_superkernel": enabled and bool(plan.scopes),
    }


def unified_diff(before: str, after: str, name: str) -> str:
    """Like `git diff`, files without a final line end included."""
    lines = difflib.unified_diff(lines_of(before), lines_of(after), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _notes(text: str) -> tuple[str, ...]:
    banner = text[:_BANNER_CHARACTERS].lower()
    if "automatically generated" in banner or "do not edit" in banner:
        return (
            "The file says that it is generated: apply the diff to a copy of your own, or change what it is made from.",
        )
    return ()


def _rewritten(recording: Recording, plan: Plan) -> str:
    problems: list[Problem] = []
    refusals, scope_refusals = Refusals(), ScopeRefusals()
    statements: list[Statement] = []
    try:
        statements = place(recording, plan)
    except RefusedError as refused:
        problems += refused.problems
    scopes = place_scopes(recording, plan, scope_refusals)
    file = FileRewrite(recording, plan.exe_mode)

    def prefetch(group: list[Statement]) -> None:
        try:
            file.prefetch(group)
        except NotPlaceable as reason:
            for entry in (entry for statement in group for entry in statement.entries):
                refusals.add(entry, reason)

    def scope(edit: Callable[[ScopeStatement], None], statement: ScopeStatement) -> None:
        try:
            edit(statement)
        except NotPlaceable as reason:
            for entry in statement.entries:
                scope_refusals.add(entry, reason)

    edits: list[tuple[tuple[str, float, float, float], Callable[[], None]]] = []
    for group in _groups(statements):
        edits.append((group[0].spot.place, lambda group=group: prefetch(group)))  # type: ignore[misc]
    for s in scopes:
        edits.append((_place(s, s.first.site, _START), lambda s=s: scope(file.open_scope, s)))  # type: ignore[misc]
        edits.append((_place(s, s.last.site, _END), lambda s=s: scope(file.close_scope, s)))  # type: ignore[misc]
    for _, edit in sorted(edits, key=lambda e: e[0]):
        edit()
    try:
        if plan.prefetch:
            file.link_layers()
            file.check(PREFETCH)
            file.join()
    except NotPlaceable as reason:
        refusals.add(plan.prefetch[0], reason)
    try:
        if plan.scopes:
            file.check(SUPERKERNEL)
    except NotPlaceable as reason:
        scope_refusals.add(plan.scopes[0], reason)
    problems += [*refusals.problems(), *scope_refusals.problems()]
    text = ""
    if not problems:
        try:
            text = file.text()
        except NotPlaceable as reason:
            if plan.prefetch:
                refusals.add(plan.prefetch[0], reason)
            else:
                scope_refusals.add(plan.scopes[0], reason)
            problems = [*refusals.problems(), *scope_refusals.problems()]
    if problems:
        raise RefusedError(problems)
    return text


def _groups(statements: list[Statement]) -> list[list[Statement]]:
    """Statements that hang on the same tensor at the same place."""
    groups: dict[object, list[Statement]] = {}
    for statement in statements:
        spot = statement.spot
        groups.setdefault((spot.function, spot.site, spot.where, spot.port), []).append(statement)
    return list(groups.values())


def _place(statement: ScopeStatement, site: Any, moment: float) -> tuple[str, float, float, float]:
    return statement.function, site.end_line, site.end_column, moment
