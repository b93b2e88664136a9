"""What `analyze` prints of the replay: forecasts per candidate and size, the combination, the recipe."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.figures import Figure, band_text, written
from pipeline.progress import shown
from pipeline.replay.findings import scope_lines

if TYPE_CHECKING:
    from pipeline.mapping.emit import Written
    from pipeline.replay.findings import Findings


def findings_view(found: "Findings") -> list[RenderableType]:
    """Tables and lines for a terminal."""
    m = found.measured
    blocks: list[RenderableType] = [Text(f"replay: {replay_line(found)}", style="bold")]
    if m.mapping is not None:
        blocks.append(Text(mapping_line(found)))
    if not found.tuned.alone:
        blocks.append(Text("no candidate to forecast"))
    else:
        blocks += [Text(""), _alone(found)]
        blocks += [Text(line) for line in moved_lines(found)]
        blocks += [Text(line) for line in together_lines(found)]
    if found.scoped is not None:
        blocks += [Text(f"SuperKernel: {line}") for line in scope_lines(found.scoped)]
    if found.unnamed:
        blocks.append(Text(""))
        blocks += [
            Text(f"not placed in the model: {u.candidate.target.label}: {u.reason['en']}") for u in found.unnamed
        ]
    if found.recipe is not None:
        blocks += [Text(f"left out of the recipe: {t.name}: {reason}") for t, reason in found.recipe.left_out]
    return blocks


def recipe_lines(recipe: "Written", directory: Path | None) -> list[RenderableType]:
    """Where the recipe is, and how to go on with it; without `output=` its text."""
    name = recipe.data["name"]
    if directory is None:
        hint = "the recipe (add output=DIR to write it where `--config-dir DIR/conf` finds it):"
        return [Text(""), Text(hint, style="bold"), Text(recipe.text)]
    folder = shlex.quote(str(shown(directory / "conf")))
    return [
        Text(f"recipe: {shown(directory / 'conf' / 'recipe')}/{name}.yaml"),
        Text(f"  npu-recipes --config-dir {folder} validate recipe={name}"),
    ]


def replay_line(found: "Findings") -> str:
    """`the step takes 14,644.4 us (modelled) of 14,699.3 us measured, -0.4 %; calibrated: gap 0.1 us ...`."""
    m = found.measured
    used = [f"{c.name.replace('_', ' ')} {band_text(c.figure)}" for c in m.calibration if c.used]
    calibrated = f"; from the profile: {', '.join(used)}" if used else ""
    return (
        f"{written(m.replayed.value)} us a step (modelled) for {written(m.measured.value)} us (measured), "
        f"{written(m.off, 1, sign=True)} %{calibrated}"
    )


def mapping_line(found: "Findings") -> str:
    """How much of the step was found in the model."""
    m = found.measured
    assert m.mapping is not None
    counts: dict[str, int] = {}
    for p in m.mapping.placed:
        counts[p.sure] = counts.get(p.sure, 0) + 1
    words = ", ".join(f"{n} {name}" for name, n in counts.items())
    lost = (
        f"; not in the model: {names_of([m.step.op_types[a] for a in m.mapping.unplaced])}"
        if m.mapping.unplaced
        else ""
    )
    missing = [m.workload.kernels[k].op for k in m.not_run]
    absent = f"; not in the profile: {names_of(missing)}" if missing else ""
    return f"kernels found in the model: {len(m.mapping.placed)} of {len(m.step)} ({words}){lost}{absent}"


def names_of(ops: list[str], most: int = 6) -> str:
    """`Cast (28), TensorMove (2) and 3 more kinds`."""
    counts: dict[str, int] = {}
    for op in ops:
        counts[op] = counts.get(op, 0) + 1
    listed = sorted(counts.items(), key=lambda c: -c[1])
    more = f" and {len(listed) - most} more kinds" if len(listed) > most else ""
    return ", ".join(f"{op} ({n})" for op, n in listed[:most]) + more


def moved_lines(found: "Findings") -> list[str]:
    """The further positions, each at the best size of the first."""
    lines = ["the same weights at a later dependency, at the size that was best before (modelled):"]
    for trial in found.tuned.moved:
        name, share = trial.chosen[0]
        lines.append(f"  {name} at {share}: {band_text(trial.gain)}; {found.labels.get(name, '')}")
    return lines if found.tuned.moved else []


def together_lines(found: "Findings") -> list[str]:
    """The combination, target by target, and what did not add."""
    tuned = found.tuned
    if tuned.best is None:
        return ["together: no target pays in the replay (modelled)"]
    lines = ["together, in the order of what each gains alone (modelled):"]
    for trial in tuned.steps:
        name, share = trial.chosen[-1]
        lines.append(f"  + {name} at {share}: {band_text(trial.gain)}")
    for trial in tuned.refused:
        name, share = trial.chosen[-1]
        lines.append(f"  not {name} at {share}: {band_text(trial.gain)} would not add, or not stay sure")
    return lines


def sizes_of(found: "Findings") -> list[str]:
    """The coefficients that were tried, in ascending order."""
    return [str(c) for c in sorted({t.chosen[0][1] for t in found.tuned.alone})]


def alone_rows(found: "Findings") -> list[tuple[str, str, list[Figure]]]:
    """(target, kernels, gains by ascending coefficient)."""
    rows: dict[str, dict[str, Figure]] = {}
    for trial in found.tuned.alone:
        name, share = trial.chosen[0]
        rows.setdefault(name, {})[str(share)] = trial.gain
    return [(name, found.labels.get(name, ""), [gains[s] for s in sizes_of(found)]) for name, gains in rows.items()]


def _alone(found: "Findings") -> Table:
    table = Table(
        title="Each candidate alone: gain of the replayed step in %, with band (modelled)",
        title_justify="left",
        header_style="bold",
    )
    table.add_column("target\n  kernel", overflow="fold")
    for share in sizes_of(found):
        table.add_column(share, justify="right", no_wrap=True)
    for name, label, gains in alone_rows(found):
        best = max(g.value for g in gains)
        cells = []
        for gain in gains:
            low, high = (written(v or 0.0, 2, sign=True) for v in (gain.low, gain.high))
            style = "bold" if gain.value == best and best > 0 else ""
            cells.append(Text(f"{written(gain.value, 2, sign=True)}\n[{low}, {high}]", style=style))
        table.add_row(f"{name}\n  {label}" if label != name else name, *cells)
    return table
