"""`run`: one trial or a grid of them, through Hydra, with everything checked before the first one starts."""

import contextlib
import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from models.problems import Problem, RefusedError, raise_errors
from pipeline import outputs, task
from pipeline.compose import CONF, GridPoint, compose_points, hydra
from pipeline.config_files import config_dir_words
from pipeline.environment import command_line, interpreter_problems, trial_key
from pipeline.launch import launch
from pipeline.ledger import Ledger
from pipeline.overrides import GROUPS, read_overrides
from pipeline.progress import Stopwatch, say, shown
from pipeline.reporter import located

INTERRUPTED = "interrupted"
SweepStatus = Literal["ok", "partial", "failed"]


@dataclass(frozen=True)
class Checked:
    """The grid after validation.

    Attributes:
        points: one per trial key; points that mean the same are one trial.
        keys: their trial keys.
        prepared: from `experiment.prepare`, in the same order.
        warnings: of all points.
    """

    points: list[GridPoint]
    keys: list[str]
    prepared: list[Any]
    warnings: list[Problem]


@dataclass(frozen=True)
class RunResult:
    """What `run` prints.

    Attributes:
        directory: the output directory, or the sweep directory.
        trials: the trials' JSON objects with `label` and `varying`; one for a single run.
        status: of the sweep, or `ok` / `failed`.
        problems: warnings.
        heading: recipe, model, deployment, hardware and runtime in words.
    """

    directory: Path
    trials: list[dict[str, Any]]
    status: str
    sweep: bool
    problems: list[Problem] = field(default_factory=list)
    heading: str = ""

    @property
    def code(self) -> int:
        """Exit code."""
        return 0 if self.status == "ok" else 1

    def to_json(self) -> dict[str, Any]:
        if not self.sweep:
            return {k: v for k, v in self.trials[0].items() if k not in ("label", "varying")}
        return {
            "status": self.status,
            "sweep_dir": str(self.directory),
            "trials": self.trials,
            "problems": [p.to_json() for p in self.problems],
        }


def check_grid(
    tokens: Sequence[str],
    multirun: bool,
    folders: Sequence[Path] = (CONF,),
    rewrites: bool = False,
    writes: bool = False,
    resume: Path | None = None,
) -> Checked:
    """Compose, build and prepare every grid point; nothing is written.

    Args:
        tokens: overrides as typed.
        multirun: `-m` was given.
        folders: config folders.
        rewrites: what follows needs the model's source rewritten, so the interpreter must be fit for that.
        writes: what follows writes its results to `output`, or to `resume`.
        resume: a sweep directory that exists.

    Raises:
        RefusedError: with the problems of the command line and of all points.
    """
    overrides, problems = read_overrides(tokens)
    if any((p.key or "").partition("@")[0] in GROUPS for p in problems):
        raise RefusedError(problems)  # Without a group's choice nothing can be said about the rest.
    points, more = compose_points(overrides, multirun, folders)
    problems += more
    if not points:
        raise RefusedError(problems)
    unique = {trial_key(point.config): point for point in reversed(points)}
    keys = list(dict.fromkeys(trial_key(point.config) for point in points))
    found = dict.fromkeys(problems)
    if writes:
        root = resume or Path(str(points[0].config["output"]))
        found.update(dict.fromkeys(outputs.writable_problems(root, len(keys))))
    if rewrites and any(point.config["transform"] == "source" for point in points):
        found.update(dict.fromkeys(interpreter_problems()))
    prepared: list[Any] = []
    watch = Stopwatch()
    say(heading(points))
    for key in keys:
        config, sources = unique[key].config, unique[key].sources(folders)
        try:
            prepared.append(task.prepare(config, sources))
            of_point = prepared[-1].problems
        except RefusedError as refused:
            of_point = refused.problems
        found.update(dict.fromkeys(located(problem, config, sources) for problem in of_point))
    warnings = raise_errors(found)
    say(f"checked {len(keys)} {'trial' if len(keys) == 1 else 'trials'}: loaded, traced, resolved ({watch})")
    return Checked([unique[key] for key in keys], keys, prepared, warnings)


def run(tokens: Sequence[str], multirun: bool, words: Sequence[str], folders: Sequence[Path] = (CONF,)) -> RunResult:
    """Run one trial, or a sweep.

    Args:
        tokens: overrides as typed.
        multirun: `-m` was given.
        words: the whole command line, for the records.
        folders: config folders.

    Raises:
        RefusedError: before anything ran, and then nothing was written.
    """
    resume = _resumed(tokens)
    if resume is not None:
        ledger = Ledger(resume)
        if not ledger.tokens():
            fix = "Give the directory that holds the sweep's ledger.jsonl."
            message = f"{resume} is no sweep directory"
            raise RefusedError([Problem("error", "no-sweep-directory", message, fix, "sweep.resume")])
        with ledger.owned():  # refuse before the grid is loaded
            tokens, multirun = [*ledger.tokens(), *tokens], True
    checked = check_grid(tokens, multirun, folders, rewrites=True, writes=True, resume=resume)
    root = Path(str(checked.points[0].config["output"]))
    task.PREPARED.clear()
    for key, point, prepared in zip(checked.keys, checked.points, checked.prepared, strict=True):
        task.PREPARED[key], task.TYPED[key] = prepared, point.typed
    directory = resume or outputs.create(root, sweep=multirun)
    if not multirun:
        return _run_one(checked, directory, folders)
    return _run_sweep(checked, directory, tokens, words, folders)


def _run_one(checked: Checked, directory: Path, folders: Sequence[Path]) -> RunResult:
    outputs.write_status(directory, "queued", key=checked.keys[0])
    point = checked.points[0]
    overrides = [*point.overrides, f"hydra.run.dir={_quoted(directory)}"]
    with hydra(folders) as app, _own_errors():
        returned = app.run(config_name="config", task_function=task.run_job, overrides=overrides)
    trial = {"label": point.label, "varying": dict(point.varying), **returned.return_value}
    return RunResult(directory, [trial], str(trial["status"]), False, checked.warnings, heading([point]))


def _run_sweep(
    checked: Checked, directory: Path, tokens: Sequence[str], words: Sequence[str], folders: Sequence[Path]
) -> RunResult:
    from pipeline.sweep_report import write_report

    ledger = Ledger(directory)
    kept = [t for t in tokens if not t.lstrip("+").startswith("sweep.resume=")]
    with ledger.owned():
        ledger.start(command_line(list(words)), kept)
        for key, point in zip(checked.keys, checked.points, strict=True):
            ledger.move(key, "queued", label=point.label, overrides=list(point.typed))
        say(f"{len(checked.keys)} {'trial' if len(checked.keys) == 1 else 'trials'} in {shown(directory)}")
        grid = [point.overrides for point in checked.points]
        overrides = [o for o in grid[0] if o.startswith(("hydra.", "hydra/"))]
        overrides += [f"hydra.sweep.dir={_quoted(directory)}", "hydra.mode=MULTIRUN"]
        returned: dict[str, dict[str, Any]] = {}
        lost = "the trial's process ended without a result"
        try:
            with hydra(folders) as app, _own_errors():
                for trial in launch(app, task.run_job, grid, overrides, directory):
                    returned[trial["key"]] = trial
        except KeyboardInterrupt:
            lost = INTERRUPTED
            again = shlex.join([*config_dir_words(folders), f"sweep.resume={shown(directory)}"])
            say(f"interrupted; npu-recipes {again} goes on")
        except Exception as error:  # the launcher itself broke: report what is there
            lost = f"the launcher failed: {type(error).__name__}: {error}"
            say(lost)
        pairs = zip(checked.keys, checked.points, strict=True)
        trials = [_collect(key, point, directory, returned, ledger, lost) for key, point in pairs]
        status = sweep_status(trials)
        result = RunResult(directory, trials, status, True, checked.warnings, heading(checked.points))
        try:
            write_report(result, command_line(list(words)))
            ledger.finish(status)
        except OSError as error:  # a full disk: what was found is still printed
            say(f"the report of the sweep can't be written: {error}")
            result = replace(result, status="partial" if status == "ok" else status)
    return result


def _collect(
    key: str, point: GridPoint, directory: Path, returned: Mapping[str, dict[str, Any]], ledger: Ledger, lost: str
) -> dict[str, Any]:
    """A trial's JSON object: as returned, else from its directory, else as lost."""
    label: dict[str, Any] = {"label": point.label or key, "varying": dict(point.varying)}
    place = directory / key
    if key in returned:
        return {**label, **returned[key]}
    status = outputs.read_json(place / "status.json") or {}
    record = outputs.read_json(place / "record.json")
    if status.get("status") in ("done", "failed") and record:
        return {**label, **record}
    error = status.get("error") or lost
    empty: dict[str, Any] = {"verification": {}, "metrics": {}, "targets": []}
    if lost == INTERRUPTED and not place.exists():
        verdict = {"outcome": "not_run", "reason": lost}
        return {**label, "key": key, "output_dir": str(place), "status": "queued", "verdict": verdict, **empty}
    with contextlib.suppress(OSError):  # where nothing can be written, the result says it at least
        if ledger.states().get(key) in ("queued", "running"):
            ledger.move(key, "failed", error=error)
        if status.get("status") != "failed":
            place.mkdir(exist_ok=True)
            outputs.write_status(place, "failed", key=key, stage="launch", error=error)
    verdict = {"outcome": "failed", "reason": error}
    return {**label, "key": key, "output_dir": str(place), "status": "failed", "verdict": verdict, **empty}


def sweep_status(trials: Sequence[Mapping[str, Any]]) -> SweepStatus:
    """`ok` if all trials are, `failed` if none is, else `partial`."""
    good = sum(trial["status"] == "ok" for trial in trials)
    return "ok" if good == len(trials) else "partial" if good else "failed"


def heading(points: Sequence[GridPoint]) -> str:
    """`recipe on model, deployment, hardware, runtime`; what differs between the points is counted."""
    words = []
    for group in ("recipe", "model", "deployment", "hardware", "runtime"):
        names = list(dict.fromkeys(point.choices[group] for point in points))
        several = "kinds of hardware" if group == "hardware" else f"{group}s"
        words.append(names[0] if len(names) == 1 else f"{len(names)} {several}")
    return f"{words[0]} on {', '.join(words[1:])}"


def _resumed(tokens: Sequence[str]) -> Path | None:
    overrides, _ = read_overrides(tokens)
    for override in overrides:
        if override.key == "sweep.resume" and override.values and override.typed.partition("=")[2] not in ("", "null"):
            return Path(override.typed.partition("=")[2].strip("'\"")).resolve()
    return None


def _quoted(path: Path) -> str:
    from pipeline.overrides import quote

    return quote(str(path))


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Hydra prints `Error executing job` when a failed job's value is read; our own report says it better."""
    captured = io.StringIO()
    with contextlib.redirect_stdout(captured):
        yield
    if captured.getvalue().strip():
        say(captured.getvalue().rstrip())
