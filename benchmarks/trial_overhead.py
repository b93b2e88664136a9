"""What one modelled trial costs in a sweep, against an empty Hydra job: at most 5 times as much.

Both are 30 jobs over the same grid, configuration and launcher, in one process; the first job, which loads, traces and
compiles what the others reuse, is excluded on both sides. A trial's share of the validation beforehand is counted in.

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
        empty = empty_jobs(tokens, Path(folder) / "empty")
        checks, trials, reused = our_trials(tokens)
    table = Table(title=f"{JOBS} jobs, the first excluded; ms per job", title_justify="left")
    for heading in ("", "mean", "fastest", "slowest", "times an empty job"):
        table.add_column(heading, justify="left" if not heading else "right")
    base = mean(empty)
    total = [check + trial for check, trial in zip(checks, trials, strict=True)]
    for name, times in {
        "empty Hydra job": empty,
        "validation of one point, before the sweep": checks,
        "modelled trial, with Hydra's share": trials,
        "both": total,
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


def empty_jobs(tokens: list[str], directory: Path) -> list[float]:
    """Seconds from one empty job to the next, in the launcher that our trials use."""
    from pipeline import compose, launch
    from pipeline.overrides import read_overrides

    points = compose.compose_grid(read_overrides(tokens)[0], sweep=True)
    starts: list[float] = []
    directory.mkdir()

    def empty(config: Any) -> None:
        starts.append(time.perf_counter())

    hydra = [f"hydra.sweep.dir={directory}", "hydra.sweep.subdir=${hydra.job.num}", "hydra.mode=MULTIRUN"]
    jobs = [[*point.overrides, *hydra[:2]] for point in points]
    with compose.hydra() as app:
        list(launch.launch(app, empty, jobs, hydra, directory))
    return [after - before for before, after in zip(starts[1:], [*starts[2:], time.perf_counter()], strict=True)]


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
    launch, ends = sweep.launch, []

    def launch_and_mark(*args: Any) -> Any:
        yield from launch(*args)
        ends.append(time.perf_counter())

    sweep.launch = launch_and_mark
    result = sweep.run(tokens, True, ["-m", *tokens])
    if result.status != "ok":
        raise SystemExit(f"the sweep is {result.status}: {result.trials[0]['verdict']}")
    starts = [*marks["job"][1:], ends[0]]
    jobs = [after - before for before, after in itertools.pairwise(starts)]
    checks = [a + b for a, b in zip(marks["compose"][1:], marks["prepare"][1:], strict=True)]
    return checks, jobs, list(result.trials[-1].get("reused", ()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
