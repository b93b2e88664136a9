"""What `compare` prints in text: the outcome, the five points, targets, streams and movers."""

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.comparison.changes import Change
from pipeline.comparison.words import gain_text, spread, two
from pipeline.figures import written
from pipeline.progress import shown

if TYPE_CHECKING:
    from pipeline.compare import CompareResult
    from pipeline.comparison.side import Side


def comparison_view(result: "CompareResult") -> RenderableType:
    """The whole result for a terminal."""
    verdict = result.verdict
    blocks: list[RenderableType] = [
        Text(f"baseline  {side_line(result.before)}"),
        Text(f"optimised {side_line(result.after)}"),
        Text(""),
        Text(f"{verdict.outcome.replace('_', ' ')} (measured): {verdict.reason.get('en')}", style="bold"),
        Text(success_line(result)),
        Text(""),
        _points(result),
        Text(""),
        _steps(result),
    ]
    if result.found.targets:
        blocks += [Text(""), _targets(result)]
    blocks += [Text(""), _streams(result), Text(""), _movers(result)]
    for signal in verdict.signals:
        blocks += [Text(""), Text(f"{signal.seen.get('en')}"), Text(f"  next: {signal.adjustment.get('en')}")]
    if result.directory is not None:
        blocks += [Text(""), Text(f"report: {shown(result.directory / 'report.md')}")]
    return Group(*blocks)


def side_line(side: "Side") -> str:
    """`runs/a/kernel_details.csv, rank 0: 7 decode steps of 95 kernels (1 left out as the first)`."""
    phase = side.phase
    left = [f"{phase.dropped} left out as the first"] if phase.dropped else []
    left += [f"{phase.different} with other kernels"] if phase.different else []
    rank = f", rank {side.profile.rank}" if side.profile.rank is not None else ""
    steps = f"{side.steps} {phase.name} {'step' if side.steps == 1 else 'steps'} of {len(side)} kernels"
    return f"{shown(side.profile.source)}{rank}: {steps}" + (f" ({', '.join(left)})" if left else "")


def success_line(result: "CompareResult") -> str:
    """The two-of-four rule."""
    met = ", ".join(point.question.en.rstrip("?") for point in result.checklist if point.id in result.verdict.met)
    words = {True: "holds", False: "does not hold", None: "can't be told"}[result.verdict.success]
    return f"at least two of four: {words}" + (f" ({met})" if met else "")


def delta(change: Change) -> str:
    """Difference in us per step."""
    return written(change.delta_us, 1, sign=True)


def _points(result: "CompareResult") -> Table:
    table = Table(title="Checklist (measured)", title_justify="left", header_style="bold")
    table.add_column("point")
    table.add_column("")
    table.add_column("figures", overflow="fold")
    for point in result.checklist:
        table.add_row(point.question.en, point.answer, point.detail.en)
    return table


def _steps(result: "CompareResult") -> Table:
    title = "Per step, us: median [10 %, 90 % of the steps] (measured)"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("")
    for heading in ("baseline", "optimised", "us", "faster [95 % interval]"):
        table.add_column(heading, justify="right", no_wrap=True)
    found = result.found
    rows = (
        ("step, first start to last end", found.step),
        ("some kernel runs (union)", found.busy),
        ("no kernel runs", found.idle),
        ("target kernels, sum", found.target_sum),
        ("kernels before targets, sum", found.windows),
        ("kernels that don't wait for memory", found.steady),
        ("copies, where recorded", found.copies),
    )
    for name, change in rows:
        if change is not None:
            table.add_row(name, spread(change.before), spread(change.after), delta(change), gain_text(change.faster))
    return table


def _targets(result: "CompareResult") -> Table:
    every = result.found.targets
    title = "Target kernels, us each" + (f", {result.top} of {len(every)} places" if len(every) > result.top else "")
    table = Table(title=f"{title} (measured; bytes from shapes)", title_justify="left", header_style="bold")
    table.add_column("place", overflow="fold")
    for heading in ("calls", "baseline", "optimised", "faster [95 %]", "GB/s", "kernels before it, faster"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for target in every[: result.top]:
        rates = [None if r is None else written(r, 0) for r in (target.gb_s_before, target.gb_s_after)]
        table.add_row(
            target.label,
            str(target.calls),
            written(target.before.value, 2),
            written(target.after.value, 2),
            gain_text(target.faster),
            f"{rates[0]} -> {rates[1]}" if None not in rates else "-",
            gain_text(target.window.faster) if target.window else "-",
            "above the HBM peak: from L2" if target.from_l2 else "",
        )
    return table


def _streams(result: "CompareResult") -> Table:
    table = Table(title="Streams, us (measured)", title_justify="left", header_style="bold")
    table.add_column("stream")
    for heading in ("busy", "faster [95 %]", "idle", "ends", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for stream in result.found.streams:
        late = "later" if stream.late else ""
        cells = [two(stream.busy), gain_text(stream.busy.faster), two(stream.idle), two(stream.end), late]
        table.add_row(stream.name, *cells)
    return table


def _movers(result: "CompareResult") -> Table:
    table = Table(title="Top movers, us per step (measured)", title_justify="left", header_style="bold")
    table.add_column("place", overflow="fold")
    for heading in ("calls", "baseline", "optimised", "us", "faster [95 %]"):
        table.add_column(heading, justify="right", no_wrap=True)
    for change in result.found.movers[: result.top]:
        values = [written(f.value) if f is not None else "-" for f in (change.before, change.after)]
        table.add_row(change.label, str(change.calls), *values, delta(change), gain_text(change.faster))
    return table
