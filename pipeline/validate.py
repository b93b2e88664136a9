"""`validate`: a recipe against a model, without a device and without writing anything."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.experiment import Prepared
from pipeline.figures import Figure
from pipeline.resolve import TargetMatch
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


def _view(prepared: Prepared) -> RenderableType:
    resolution = prepared.resolution
    title = ", ".join(f"{key} {value}" for key, value in setting(prepared).items())
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
            "explicit size" if match.coefficient is None else str(match.coefficient),
            "" if match.l2_share is None else f"{100 * match.l2_share:.1f} %",
            _window(match.window),
        )
    plan = resolution.plan
    total = sum(p.max_size for p in plan.prefetch)
    foot = Text(
        f"plan {plan.hash}: {len(plan.prefetch)} prefetches per decode step, {approximate_size(total)} in all, "
        f"at most {approximate_size(resolution.in_flight)} in flight\n"
    )
    return Group(table, foot)


def _window(window: Figure | None) -> str:
    if window is None:
        return ""
    text = f"{window.value:.1f} {window.unit}"
    return text if window.low is None else f"{text} [{window.low:.1f}, {window.high:.1f}]"
