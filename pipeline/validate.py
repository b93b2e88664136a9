"""`validate`: a recipe against a model, without a device and without writing anything."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.experiment import Prepared
from pipeline.figures import Figure, written
from pipeline.resolve import Resolution, TargetMatch
from pipeline.sizes_text import approximate_size


def run_validate(prepared: Sequence[Prepared]) -> tuple[dict[str, Any], RenderableType]:
    """The JSON object and the tables of `validate`.

    Args:
        prepared: every grid point; one without `-m`.

    Returns:
        JSON of the single point, or `{"status", "points": [...]}` of several; and the view for a terminal.
    """
    objects = [_as_json(p) for p in prepared]
    data = objects[0] if len(objects) == 1 else {"status": "ok", "points": objects}
    return data, Group(*(_view(p) for p in prepared))


def setting(prepared: Prepared) -> dict[str, str]:
    """What the recipe was resolved for; every table prints it."""
    experiment = prepared.experiment
    return {
        "recipe": experiment.recipe.name,
        "model": experiment.model.name,
        "deployment": experiment.deployment.name,
        "hardware": experiment.machine.name,
        "runtime": experiment.exe_mode,
    }


def _as_json(prepared: Prepared) -> dict[str, Any]:
    resolution = prepared.resolution
    return {
        "status": "ok",
        **setting(prepared),
        "plan": resolution.plan.to_json(),
        "matches": [_match_json(m) for m in resolution.matches],
        "in_flight": resolution.in_flight,
        "superkernel": superkernel_json(resolution),
        "problems": [p.to_json() for p in prepared.problems],
    }


def _match_json(match: TargetMatch) -> dict[str, Any]:
    return {
        "target": match.target,
        "weight": match.weight,
        "dependency": match.dependency,
        "matched": match.matched,
        "skipped": match.skipped,
        "example": match.example,
        "theoretical_size": match.theoretical_size,
        "max_size": match.max_size,
        "offset": match.offset,
        "coefficient": None if match.coefficient is None else str(match.coefficient),
        "l2_share": match.l2_share,
        "window": match.window.to_json() if match.window else None,
    }


def superkernel_json(resolution: Resolution) -> dict[str, Any]:
    """Strategy in force, what `auto` says, and one row per name of a scope; savings are modelled."""
    scopes = resolution.scopes
    return {
        "enabled": bool(scopes.strategy),
        "strategy": scopes.strategy or None,
        "why": scopes.choice.why.en if scopes.choice else None,
        "candidates": [c.to_json() for c in scopes.choice.candidates] if scopes.choice else [],
        "kernels": sum(m.kernels for m in scopes.matches),
        "scopes": [m.to_json() for m in scopes.matches],
    }


def _view(prepared: Prepared) -> RenderableType:
    title = ", ".join(f"{key} {value}" for key, value in setting(prepared).items())
    resolution = prepared.resolution
    parts: list[RenderableType] = []
    if resolution.matches or not resolution.scope_matches:
        parts.append(_prefetch_table(resolution, title))
        title = ""
    if resolution.scope_matches:
        parts += [*([Text("")] if parts else []), _scope_table(resolution, title)]
    return Group(*parts, Text(_foot(resolution)))


def _prefetch_table(resolution: Resolution, title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("target", no_wrap=True)
    table.add_column("weight after dependency", overflow="fold")
    for name in ("layers", "whole weight", "max_size", "coefficient", "of L2", "window, modelled"):
        table.add_column(name, justify="right", no_wrap=name != "window, modelled")
    for match in resolution.matches:
        table.add_row(
            match.target,
            f"{match.weight}\n  after {match.dependency}",
            f"{match.matched}" + (f", {match.skipped} skipped" if match.skipped else ""),
            approximate_size(match.theoretical_size),
            approximate_size(match.max_size),
            "explicit size" if match.coefficient is None and match.matched else str(match.coefficient or ""),
            "" if match.l2_share is None else f"{100 * match.l2_share:.1f} %",
            _window(match.window),
        )
    return table


def _scope_table(resolution: Resolution, title: str) -> Table:
    scopes = resolution.scopes
    heading = f"SuperKernel, strategy {scopes.strategy}"
    table = Table(title=f"{title}\n{heading}" if title else heading, title_justify="left", title_style="bold")
    table.add_column("scope", no_wrap=True)
    table.add_column("from the first to the last module", overflow="fold")
    headings = ("scopes", "kernels", "fusable", "launches saved", "launch time", "step, modelled")
    for name in headings:
        table.add_column(name, justify="right")
    for match in scopes.matches:
        where = match.first if match.first == match.last else f"{match.first}\n  to {match.last}"
        streams = f"\n  streams {', '.join(match.streams)}, one after the other" if match.serialises else ""
        table.add_row(
            match.name,
            where + streams,
            f"{match.matched}" + (f", {match.skipped} skipped" if match.skipped else ""),
            str(match.kernels),
            f"{100 * match.share:.0f} %",
            str(match.launches_saved),
            _per_layer(match.launch_saving),
            _per_layer(match.step_saving),
        )
    return table


def _per_layer(saving: Figure | None) -> str:
    """`8.4 us/layer [3.1, 9.0]`, what is saved; negative is lost."""
    if saving is None:
        return ""
    text = f"{written(saving.value)} {saving.unit}/layer"
    if saving.low is None or saving.high is None:
        return text
    return f"{text} [{written(saving.low)}, {written(saving.high)}]"


def _foot(resolution: Resolution) -> str:
    plan = resolution.plan
    total = sum(p.max_size for p in plan.prefetch)
    text = f"plan {plan.hash}: {len(plan.prefetch)} prefetches per decode step, {approximate_size(total)} in all, "
    text += f"at most {approximate_size(resolution.in_flight)} in flight"
    if plan.scopes:
        kernels = sum(m.kernels for m in resolution.scope_matches)
        text += f"; {len(plan.scopes)} scopes with {kernels} kernels"
    choice = resolution.scopes.choice
    return text + (f"\nauto: {choice.why.en}" if choice else "") + "\n"


def _window(window: Figure | None) -> str:
    if window is None:
        return ""
    text = f"{window.value:.1f} {window.unit}"
    if window.low is None or window.high is None or window.high - window.low < 0.05:
        return text
    return f"{text}, {window.low:.1f} to {window.high:.1f} over layers"
