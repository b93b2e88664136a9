"""Observed SuperKernel scopes against the plan: the first deviation, in words."""

from dataclasses import dataclass

from pipeline.verify.observation import Event, Observation, Step
from transforms.plan import Plan, Scope


@dataclass(frozen=True)
class _Run:
    """One scope that was opened and closed, and what was entered and left inside."""

    label: str
    options: str
    inside: tuple[Event, ...]


def count_scopes(step: Step) -> int:
    """Scopes opened in a step."""
    return sum(event.kind == "open" for event in step.events)


def scope_deviation(plan: Plan, seen: Observation) -> str | None:
    """The first point at which the scopes of a run with the switch on are not the planned ones; None if they are."""
    if seen.stray_scopes:
        return f"scope {seen.stray_scopes[0].name} is opened or closed outside the model's forward"
    for step in seen.steps:
        if not step.decode and count_scopes(step):
            label = next(e.name for e in step.events if e.kind == "open")
            return f"prefill: {count_scopes(step)} scope(s) were opened, none must be; the first: {label}"
    for number, step in enumerate((s for s in seen.steps if s.decode), 1):
        found = _step(plan, step)
        if found:
            return f"decode step {number}, {found}"
    return None


def _step(plan: Plan, step: Step) -> str | None:
    runs, broken = _runs(step)
    total = len(plan.scopes)
    if not count_scopes(step) and total:
        return f"no scope was opened, {total} are planned, the first: {_planned(plan.scopes[0])}"
    for position, (planned, run) in enumerate(zip(plan.scopes, runs, strict=False), 1):
        found = _difference(planned, run)
        if found:
            return f"scope {position} of {total} ({planned.label}): {found}"
    if broken:
        return broken
    if len(runs) < total:
        return f"{len(runs)} scopes, {total} are planned; the first that is missing: {_planned(plan.scopes[len(runs)])}"
    if len(runs) > total:
        return f"{len(runs)} scopes, {total} are planned; the first that is too many: {runs[total].label}"
    return None


def _runs(step: Step) -> tuple[list[_Run], str | None]:
    """The scopes in order, up to the first that is not closed properly, and what is wrong with that one."""
    runs: list[_Run] = []
    opened: Event | None = None
    inside: list[Event] = []
    for event in step.events:
        if event.kind == "open":
            if opened is not None:
                return runs, f"scope {event.name} is opened inside of scope {opened.name}"
            opened, inside = event, []
        elif event.kind == "close":
            if opened is None or opened.name != event.name:
                return runs, f"scope {event.name} is closed, but {opened.name if opened else 'none'} is open"
            runs.append(_Run(opened.name, opened.options, tuple(inside)))
            opened = None
        else:
            inside.append(event)
    return runs, f"scope {opened.name} is not closed" if opened else None


def _difference(planned: Scope, run: _Run) -> str | None:
    if run.label != planned.label:
        return f"observed scope {run.label} instead"
    options = ":".join(f"{name}={value}" for name, value in planned.options)
    if run.options != options:
        return f"options: planned {options or 'none'}, observed {run.options or 'none'}"
    if not run.inside:
        return f"no module runs inside, planned {planned.first} to {planned.last}"
    first = _edge(run.inside, "enter", planned.first)
    if first is not None:
        return f"it starts with {first}, planned {planned.first}"
    last = _edge(run.inside[::-1], "leave", planned.last)
    return f"it ends with {last}, planned {planned.last}" if last is not None else None


def _edge(events: tuple[Event, ...], kind: str, planned: str) -> str | None:
    """What is there instead of the planned module. Modules that contain it may be entered before (left after) it."""
    for event in events:
        if event.kind == kind and event.name == planned:
            return None
        if event.kind != kind or not planned.startswith(f"{event.name}."):
            return f"{event.name or 'the model'}"
    return "no module"


def _planned(scope: Scope) -> str:
    return f"{scope.label} from {scope.first} to {scope.last}"
