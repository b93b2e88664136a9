"""Tables for the terminal: what a trial or a sweep found, row by row, with units and `modelled` in the headings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from pipeline.figures import written

Trial = Mapping[str, Any]

OUTCOMES = {
    "improved": "green",
    "worse": "red",
    "degraded": "red",
    "failed": "bold red",
}


def figure(trial: Trial, name: str) -> Mapping[str, Any] | None:
    """A figure of a trial by its dotted name, None if the trial has none."""
    place: Any = trial.get("metrics") or {}
    for part in name.split("."):
        place = place.get(part) if isinstance(place, Mapping) else None
    return place if isinstance(place, Mapping) and "value" in place else None


def number(found: Mapping[str, Any] | None, digits: int = 1, sign: bool = False, band: bool = False) -> str:
    """`12.3`, `+1.2 [0.4, 2.1]`, or a dash."""
    if not found or found.get("value") is None:
        return "-"
    text = written(found["value"], digits, sign)
    if band and found.get("low") is not None:
        text += f" [{written(found['low'], digits, sign)}, {written(found['high'], digits, sign)}]"
    return text


def varying_names(trials: Sequence[Trial]) -> dict[str, str]:
    """Varying key -> its heading: the last part, more of it if two would be equal."""
    keys = list(dict.fromkeys(key for trial in trials for key in trial.get("varying") or {}))
    names = {key: key.rsplit(".", 1)[-1] for key in keys}
    for key, name in names.items():
        if list(names.values()).count(name) > 1:
            names[key] = ".".join(key.split(".")[-2:])
    return names


def rungs(trial: Trial) -> str:
    """`compiles passed, numerics passed (275/275 calls), graph not run`."""
    words = []
    for name, rung in (trial.get("verification") or {}).items():
        text = f"{name} {str(rung.get('status')).replace('_', ' ')}"
        if name == "numerics" and trial.get("calls_planned") is not None:
            text += f" ({trial.get('calls_observed')}/{trial['calls_planned']} calls)"
        words.append(text)
    return "\n".join(words) or "-"


class TrialsTable:
    """Sizes, step, gain with its band, target kernels, windows, limit, rungs and verdict of every trial.

    A row per trial where they fit, else a column per trial, in as many tables as it takes: no figure is cut.
    """

    def __init__(self, trials: Sequence[Trial], title: str) -> None:
        self.trials, self.title = trials, title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = varying_names(self.trials)
        first = 0 if any(t.get("superkernel") for t in self.trials) else 1  # no scopes, no column about them
        headings = [*names.values(), *_HEADINGS[first:]]
        rows = [[*(str((t.get("varying") or {}).get(k, "")) for k in names), *_cells(t)[first:]] for t in self.trials]
        texts = (*names.values(), *_HEADINGS[-2:])  # may be broken between words
        widths = [_width(column, by_word=column[0] in texts) for column in zip(headings, *rows, strict=True)]
        if options.max_width >= _total(widths):
            table = self._table(header_style="bold")
            for heading, width in zip(headings, widths, strict=True):
                justify: Any = "left" if heading in texts else "right"
                table.add_column(Text(heading), justify=justify, no_wrap=heading not in texts, min_width=width)
            for row in rows:
                table.add_row(*map(_cell, row))
            yield table
            return
        titles = [Text(heading.replace("\n", " "), style="bold") for heading in headings]
        label = _width(titles, by_word=False) if options.max_width >= _WITH_WHOLE_LABELS else _width(titles, True)
        while rows:
            count = 1
            while count < len(rows) and options.max_width >= _total([label, *(_width(r) for r in rows[: count + 1])]):
                count += 1
            table = self._table(show_header=False)
            table.add_column(min_width=label)
            for _ in rows[:count]:
                table.add_column(justify="right")
            for title, *cells in zip(titles, *rows[:count], strict=True):
                table.add_row(title, *map(_cell, cells))
            yield table
            rows = rows[count:]

    def _table(self, **style: Any) -> Table:
        return Table(title=Text(self.title), title_justify="left", show_lines=True, **style)


_WITH_WHOLE_LABELS = 120


def _width(cells: Sequence[Any], by_word: bool = False) -> int:
    """Of the longest line, or of the longest word."""
    texts = [str(cell) for cell in cells]
    return max((len(part) for text in texts for part in (text.split() if by_word else text.split("\n"))), default=0)


def _total(widths: Iterable[int]) -> int:
    """Of a table with such columns, lines and margins included."""
    return sum(width + 3 for width in widths) + 1


_HEADINGS = (
    "SuperKernel\nstrategy",
    "prefetched\nMiB/layer",
    "most in\nflight, MiB",
    "decode step, us\nbaseline -> optimised",
    "gain, %\n[band]",
    "tokens/s\nbaseline -> optimised",
    "target kernels, us\nbaseline -> optimised",
    "windows\n%",
    "above limit, %\nbaseline -> optimised",
    "rungs",
    "verdict",
)


def _cell(value: Any) -> Text:
    """A cell as it is: rich would take `[router]` in a plain string for markup."""
    return value if isinstance(value, Text) else Text(str(value))


def _cells(trial: Trial) -> list[Any]:
    return [
        superkernel(trial).replace(": ", ":\n").replace(", ", "\n"),
        number(figure(trial, "prefetch.per_layer")),
        number(figure(trial, "prefetch.in_flight")),
        _pair(trial, "step"),
        number(figure(trial, "delta.step"), 2, True, True).replace(" [", "\n["),
        _pair(trial, "throughput", 0),
        _pair(trial, "target_kernels"),
        number(figure(trial, "delta.windows"), 2, True),
        _pair(trial, "above_limit"),
        rungs(trial),
        outcome(trial),
    ]


def superkernel(trial: Trial) -> str:
    """`moe: 58 scopes, 580 launches saved`, or a dash."""
    found = trial.get("superkernel")
    if not found:
        return "-"
    scopes, launches = (number(figure(trial, f"superkernel.{name}"), 0) for name in ("scopes", "launches_saved"))
    return f"{found['strategy']}: {scopes} scope{'' if scopes == '1' else 's'}, {launches} launches saved"


def outcome(trial: Trial) -> Text:
    """`improved (modelled)`."""
    verdict = trial.get("verdict") or {}
    word = str(verdict.get("outcome", trial.get("status")))
    provenance = verdict.get("provenance")
    text = word.replace("_", " ") + (f"\n({provenance})" if provenance else "")
    return Text(text, style=OUTCOMES.get(word, ""))


class AloneTable:
    """Each target by itself, the spec's first step: a row per target, a gain per trial.

    On a narrow terminal only the target's name and the gains.
    """

    WIDE = 130

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = trials

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found = [t.get("gain_alone") or {} for trial in self.trials for t in trial["targets"]]
        band = " [band]" if any(f.get("low") is not None for f in found) else ", nominal"
        title = Text(f"Each target alone: gain of the decode step in %{band} (modelled)")
        wide = options.max_width >= self.WIDE
        targets = {t["name"]: t for trial in reversed(self.trials) for t in trial["targets"]}
        names = list(dict.fromkeys(t["name"] for trial in self.trials for t in trial["targets"]))
        fixed = [max(map(len, names), default=0), *(_ABOUT if wide else ())]
        columns = [
            (
                Text(str(trial.get("label") or "gain").replace(" ", "\n")),
                [number(_target(trial, name).get("gain_alone"), 2, True, True) for name in names],
            )
            for trial in self.trials
        ]
        while columns:
            count = 1
            while count < len(columns) and options.max_width >= _total(
                [*fixed, *(_width([heading, *gains]) for heading, gains in columns[: count + 1])]
            ):
                count += 1
            table = Table(title=title, title_justify="left", header_style="bold")
            table.add_column("target", no_wrap=True)
            if wide:
                table.add_column("weight -> after", overflow="fold")
                for heading in ("kernels", "kernel, us", "memory-\nbound, %", "window, us"):
                    table.add_column(heading, justify="right", no_wrap=True)
            for label, _ in columns[:count]:
                table.add_column(label, justify="right")
            for n, name in enumerate(names):
                row = [name, *(_about(targets[name]) if wide else ()), *(gains[n] for _, gains in columns[:count])]
                table.add_row(*map(_cell, row))
            yield table
            columns = columns[count:]


# Widths of what stands between a target's name and its gains; paths are folded.
_ABOUT = (30, 7, 10, 8, 10)


def _about(target: Mapping[str, Any]) -> list[str]:
    return [
        f"{target.get('weight', '')}\nafter {target.get('dependency', '')}",
        str(target.get("count", "")),
        number(target.get("baseline")),
        number(target.get("memory_bound"), 0),
        number(target.get("window")),
    ]


def result_view(trials: Sequence[Trial], heading: str, report: str) -> RenderableType:
    """Everything that `run` prints in text: the trials, each target alone, what failed, where the report is."""
    blocks: list[RenderableType] = [TrialsTable(trials, heading)]
    with_gains = [trial for trial in trials if any(t.get("gain_alone") for t in trial.get("targets") or ())]
    if with_gains:
        blocks += [Text(""), AloneTable(with_gains)]
    failed = [trial for trial in trials if trial.get("status") != "ok"]
    for trial in failed:
        verdict = trial.get("verdict") or {}
        words = f"{trial.get('label') or 'trial'} {trial.get('status')}: {verdict.get('reason', '')}"
        blocks += [Text(""), Text(f"{words}\n  {trial.get('output_dir')}/status.json", style="red")]
    taken = [t for t in trials if any(str(r).startswith("the whole trial") for r in t.get("reused") or ())]
    if taken:
        words = f"{len(taken)} of {len(trials)} trials were finished before and taken over"
        blocks += [Text(""), Text(f"{words} (trial.fresh=true runs them again).")]
    blocks += [Text(""), Text(f"report: {report}")]
    return Group(*blocks)


def _target(trial: Trial, name: str) -> Mapping[str, Any]:
    return next((t for t in trial["targets"] if t["name"] == name), {})


def _pair(trial: Trial, name: str, digits: int = 1) -> str:
    before, after = figure(trial, f"baseline.{name}"), figure(trial, f"optimized.{name}")
    return f"{number(before, digits)} -> {number(after, digits)}" if before or after else "-"
