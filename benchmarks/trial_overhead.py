"""What one modelled trial costs in a sweep, against an empty Hydra job: at most 5 times as much.

Both are 30 jobs over the same grid, configuration and launcher, in one process; the first job, which loads, traces and
compiles what the others reuse, is excluded on both sides. What each job costs before the first one starts is counted
in: Hydra composes every job once more beforehand, we compose and validate it.

    python benchmarks/trial_overhead.py [key=value ...]

Exit code 1 if the limit is missed.
"""

import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

LIMIT = 5.0
JOBS = 30
RECIPE = "recipe=longcat_flash/decode_prefetch"


def main(extra: list[str]) -> int:
    """Run both sweeps and print the table."""
    grid = "recipe.prefetch.coefficient=" + ",".join(f"{0.4 + 0.02 * n:.2f}" for n in range(JOBS))
    with tempfile.TemporaryDirectory(prefix="trial-overhead-") as folder:
        tokens = [RECIPE, grid, f"output={folder}/trials", *extra]
        composing, jobs = empty_jobs(tokens, Path(folder) / "empty")
        checks, trials, reused = our_trials(tokens)
    table = Table(title=f"{JOBS} jobs, the first excluded; ms per job", title_justify="left")
    for heading in ("", "mean", "fastest", "slowest", "times an empty job"):
        table.add_column(heading, justify="left" if not heading else "right")
    empty = [a + b for a, b in zip(composing, jobs, strict=True)]
    base = mean(empty)
    total = [check + trial for check, trial in zip(checks, trials, strict=True)]
    for name, times in {
        "empty job: composed beforehand by Hydra": composing,
        "empty job: from one to the next": jobs,
        "empty job": empty,
        "modelled trial: validated beforehand by us": checks,
        "modelled trial: from one to the next": trials,
        "modelled trial": total,
    }.items():
        numbers = [f"{1e3 * t:.0f}" for t in (mean(times), min(times), max(times))]
        table.add_row(name, *numbers, f"{mean(times) / base:.1f}")
    Console(width=110).print(table)
    ratio = mean(total) / base
    print(f"reused between trials: {', '.join(reused) or 'nothing'}")
    print(f"{ratio:.1f} times an empty job; limit {LIMIT:.0f}: {'met' if ratio <= LIMIT else 'MISSED'}")
    return 0 if ratio <= LIMIT else 1


def mean(times: list[float]) -> float:
    """Arithmetic mean: the sweep's duration is what a user waits for."""
    return sum(times) / len(times)


def empty_jobs(tokens: list[str], directory: Path) -> tuple[list[float], list[float]]:
    """Seconds of Hydra's own validation per job, and from one empty job to the next, in an ordinary Hydra sweep."""
    from pipeline import compose
    from pipeline.overrides import read_overrides

    overrides, _ = read_overrides(tokens)
    point = compose.compose_grid(overrides, sweep=True)[0]
    grid = next(o for o in overrides if o.is_sweep)
    fixed = [o for o in point.overrides if grid.key not in o]
    fixed += [f"hydra.sweep.dir={directory}", "hydra.sweep.subdir=${hydra.job.num}"]
    starts: list[float] = []

    def empty(config: Any) -> None:
        starts.append(time.perf_counter())

    with compose.hydra() as app:
        start = time.perf_counter()
        app.multirun("config", empty, [*fixed, f"++{grid.key}={','.join(grid.values)}"])
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    before_first = max(starts[0] - start - gaps[0], 0.0)
    return [before_first / len(starts)] * len(gaps[1:]), gaps[1:]


def our_trials(tokens: list[str]) -> tuple[list[float], list[float], list[str]]:
    """Seconds per trial for its validation and for its job, the first excluded; and what was reused."""
    from pipeline import compose, sweep, task

    marks: dict[str, list[float]] = {"compose": [], "prepare": [], "job": []}

    def timed(name: str, function: Any, at_start: bool = False) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            marks[name].append(start if at_start else time.perf_counter() - start)
            return result

        return call

    compose._compose_point = timed("compose", compose._compose_point)
    task.prepare = timed("prepare", task.prepare)
    task.run_job = timed("job", task.run_job, at_start=True)
    result = sweep.run(tokens, True, ["-m", *tokens])
    if result.status != "ok":
        raise SystemExit(f"the sweep is {result.status}: {result.trials[0]['verdict']}")
    jobs = [after - before for before, after in itertools.pairwise(marks["job"][1:])]
    checks = [a + b for a, b in zip(marks["compose"][1:-1], marks["prepare"][1:-1], strict=True)]
    return checks, jobs, list(result.trials[-1].get("reused", ()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
