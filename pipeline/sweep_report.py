"""The sweep's own report: results.csv, report.md and report.html with plots, all made from the trials' JSON objects."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import outputs
from pipeline.tables import figure, number, rungs, superkernel, varying_names

if TYPE_CHECKING:
    from pipeline.sweep import RunResult

TEMPLATES = Path(__file__).resolve().parent / "templates"
_FIGURES = (
    "delta.step",
    "baseline.step",
    "optimized.step",
    "baseline.throughput",
    "optimized.throughput",
    "physical_limit",
    "baseline.above_limit",
    "optimized.above_limit",
    "baseline.target_kernels",
    "optimized.target_kernels",
    "delta.target_kernels",
    "delta.windows",
    "prefetch.per_layer",
    "prefetch.in_flight",
    "prefetch.total",
    "superkernel.scopes",
    "superkernel.launches_saved",
    "delta.scoped_kernels",
    "delta.prefetch_alone",
    "delta.superkernel_alone",
)


def write_report(result: "RunResult", command: str) -> None:
    """Write the three files and the plots into the sweep directory."""
    directory, trials = result.directory, result.trials
    outputs.write_text(directory / "results.csv", results_csv(trials))
    plots = _plots(trials)
    for name, svg in plots.items():
        outputs.write_text(directory / name, svg)
    rows = [_row(trial, directory) for trial in trials]
    context = {
        "title": result.heading,
        "status": result.status,
        "command": command,
        "names": varying_names(trials),
        "rows": rows,
        "ranking": _ranking(rows),
        "targets": _targets(trials),
        "labels": [trial.get("label") for trial in trials],
        "problems": [str(p) for p in result.problems],
        "plots": plots,
        "written": outputs.now(),
    }
    for name in ("report.md", "report.html"):
        outputs.write_text(directory / name, _render(f"sweep_{name}.j2", context))


def results_csv(trials: Sequence[Mapping[str, Any]]) -> str:
    """One line per trial; every figure as value, low and high, with the unit in the heading."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = varying_names(trials)
    units = {name: _unit(trials, name) for name in _FIGURES}
    heading = ["key", "status", "outcome", "provenance", *names.values(), "superkernel.strategy"]
    for name in _FIGURES:
        unit = f" [{units[name]}]" if units[name] else ""
        heading += [f"{name}{unit}", f"{name} low", f"{name} high"]
    writer.writerow([*heading, "calls_planned", "calls_observed", "rungs", "output_dir"])
    for trial in trials:
        verdict = trial.get("verdict") or {}
        row: list[Any] = [trial.get("key"), trial["status"], verdict.get("outcome"), verdict.get("provenance", "")]
        row += [(trial.get("varying") or {}).get(key, "") for key in names]
        row.append((trial.get("superkernel") or {}).get("strategy", ""))
        for name in _FIGURES:
            found = figure(trial, name) or {}
            row += [found.get("value"), found.get("low"), found.get("high")]
        row += [trial.get("calls_planned"), trial.get("calls_observed"), rungs(trial).replace("\n", "; ")]
        writer.writerow([*row, trial.get("output_dir")])
    return text.getvalue()


def _row(trial: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    place = Path(str(trial.get("output_dir")))
    pairs = {
        name: [number(figure(trial, f"{side}.{name}"), digits) for side in ("baseline", "optimized")]
        for name, digits in (("step", 1), ("throughput", 0), ("target_kernels", 1), ("above_limit", 1))
    }
    return {
        "trial": trial,
        "place": place.relative_to(directory).as_posix() if place.is_relative_to(directory) else str(place),
        "pairs": pairs,
        "gain": number(figure(trial, "delta.step"), 2, True, True),
        "per_layer": number(figure(trial, "prefetch.per_layer")),
        "in_flight": number(figure(trial, "prefetch.in_flight")),
        "windows": number(figure(trial, "delta.windows"), 2, True),
        "superkernel": superkernel(trial),
        "strategy": (trial.get("superkernel") or {}).get("strategy", ""),
        "levers": [number(figure(trial, f"delta.{name}_alone"), 2, True, True) for name in ("prefetch", "superkernel")],
        "rungs": rungs(trial).split("\n"),
        "verdict": trial.get("verdict") or {},
    }


def _ranking(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of trials with a gain, the largest first, each with its distance to that one."""
    with_gain = [(float(found["value"]), row) for row in rows if (found := figure(row["trial"], "delta.step"))]
    with_gain.sort(key=lambda pair: -pair[0])
    return [{**row, "behind": number({"value": with_gain[0][0] - gain}, 2)} for gain, row in with_gain]


def _targets(trials: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Target -> its gain alone per trial, as texts; targets without such a figure anywhere are left out."""
    order = list(dict.fromkeys(t["name"] for trial in trials for t in trial.get("targets") or ()))
    rows = []
    for name in order:
        found: list[Mapping[str, Any]] = [_target(trial, name) for trial in trials]
        first = next(t for t in found if t)
        gains = [number(t.get("gain_alone"), 2, True, True) for t in found]
        if any(gain != "-" for gain in gains):
            rows.append({"name": name, "target": first, "gains": gains})
    return rows


def _target(trial: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((t for t in trial.get("targets") or () if t["name"] == name), {})


def _unit(trials: Sequence[Mapping[str, Any]], name: str) -> str:
    return next((str(f["unit"]) for trial in trials if (f := figure(trial, name))), "")


def _plots(trials: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """File name -> SVG: the gain with its band over what varies, and each target's gain alone."""
    good = [trial for trial in trials if figure(trial, "delta.step")]
    if not good:
        return {}
    plots = {"gain.svg": _gain_plot(good)}
    targets = _targets(good)
    if targets:
        plots["targets_alone.svg"] = _alone_plot(good, [t["name"] for t in targets])
    return plots


def _gain_plot(trials: Sequence[Mapping[str, Any]]) -> str:
    names = varying_names(trials)
    found = [figure(trial, "delta.step") or {} for trial in trials]
    values = [float(f["value"]) for f in found]
    errors = [
        [v - _or(f.get("low"), v) for v, f in zip(values, found, strict=True)],
        [_or(f.get("high"), v) - v for v, f in zip(values, found, strict=True)],
    ]
    texts = [str(t.get("label") or "") for t in trials]
    places: list[float] = list(range(len(trials)))
    numeric = False
    if len(names) == 1:
        with_numbers = [_as_number((t.get("varying") or {}).get(next(iter(names)))) for t in trials]
        if all(n is not None for n in with_numbers):
            places, numeric = [n for n in with_numbers if n is not None], True

    def draw(axes: Any) -> None:
        axes.axhline(0, color="0.5", linewidth=0.8)
        axes.errorbar(places, values, yerr=errors, fmt="o-" if numeric else "o", capsize=4, color="#1f5fa8")
        if numeric:
            axes.set_xlabel(next(iter(names.values())))
        else:
            axes.set_xticks(places, [t.replace(" ", "\n") for t in texts], fontsize=8)
        axes.set_ylabel("gain of the decode step, %")
        axes.set_title("Gain with its paired band (modelled)", fontsize=10)

    return _svg(draw, 6.4, 3.6)


def _alone_plot(trials: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    def draw(axes: Any) -> None:
        height = 0.8 / len(trials)
        for n, trial in enumerate(trials):
            rows = [_target(trial, name).get("gain_alone") for name in names]
            at = [i + (n - (len(trials) - 1) / 2) * height for i, row in enumerate(rows) if row]
            found = [row for row in rows if row]
            values = [row["value"] for row in found]
            low = [row["value"] - _or(row.get("low"), row["value"]) for row in found]
            high = [_or(row.get("high"), row["value"]) - row["value"] for row in found]
            bands = [low, high] if any(low) or any(high) else None
            axes.barh(at, values, height * 0.9, xerr=bands, capsize=2, label=trial.get("label") or None)
        axes.axvline(0, color="0.5", linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel("gain of the decode step, %")
        axes.set_title("Each target alone (modelled)", fontsize=10)
        if any(t.get("label") for t in trials):
            axes.legend(fontsize=8, frameon=False)

    return _svg(draw, 6.4, 1.2 + 0.3 * len(names) + 0.12 * len(names) * len(trials))


def _svg(draw: Any, width: float, height: float) -> str:
    """Draw on one pair of axes; the same drawing gives the same text."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context({"svg.hashsalt": "npu-recipes", "svg.fonttype": "none", "font.size": 9}):
        canvas = Canvas(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(canvas)
        axes = canvas.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        text = io.StringIO()
        canvas.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _render(template: str, context: Mapping[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(enabled_extensions=("html.j2",), default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return env.get_template(template).render(context)


def _as_number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)
