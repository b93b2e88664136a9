"""One trial as a plain Hydra job: what a launcher (basic, joblib, submitit, Ray) runs, here or in another process.

It is imported by name in the launcher's workers, and importing it registers the resolver that names a trial's
directory. It never raises: what went wrong is in the trial's status.json.
"""

import contextlib
import json
import shlex
import shutil
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from models.problems import Problem, RefusedError
from pipeline import outputs
from pipeline.compose import CONF, option_file
from pipeline.config_files import config_dir_words
from pipeline.environment import command_line, config_hash, environment, trial_key
from pipeline.ledger import Ledger
from pipeline.progress import Stopwatch, say, shortened

# What this process has prepared while validating the grid, by trial key: a trial in the same process takes it over.
PREPARED: dict[str, Any] = {}
# What the user typed for a single run; a sweep's ledger has it for each trial, readable from any process.
TYPED: dict[str, tuple[str, ...]] = {}


class TrialTimeoutError(Exception):
    """The trial took longer than `trial.timeout`."""


def run_job(cfg: DictConfig) -> dict[str, Any]:
    """Hydra's task function: run one trial in the job's directory.

    Returns:
        The JSON object of the trial, with `status` `ok` or `failed`.
    """
    config = plain(cfg)
    context = HydraConfig.get()
    directory = Path(context.runtime.output_dir)
    sweep = Path(context.sweep.dir).resolve() if context.mode == RunMode.MULTIRUN else None
    key = trial_key(config)
    noted = Ledger(sweep).queued(key) if sweep else {}
    typed = noted.get("overrides") or TYPED.get(key) or [str(o) for o in context.overrides.task]
    choices = {str(k): str(v) for k, v in context.runtime.choices.items() if v is not None}
    folders = [Path(s.path) for s in context.runtime.config_sources if s.schema == "file" and s.path]
    label = noted.get("label") or (key if sweep else "trial")
    return run_trial_in(config, directory, choices, typed, folders or [CONF], sweep, label)


def run_trial_in(
    config: Mapping[str, Any],
    directory: Path,
    choices: Mapping[str, str],
    typed: Sequence[str],
    folders: Sequence[Path],
    sweep: Path | None,
    label: str,
) -> dict[str, Any]:
    """Run, or take over, one trial, and keep its status and the ledger.

    Args:
        config: composed, resolved, plain.
        directory: of the trial; exists.
        choices: config group -> option.
        typed: overrides as a user types them for this trial alone.
        folders: where the options' files are.
        sweep: the sweep directory, None for a single run.
        label: what progress lines call the trial.
    """
    key = trial_key(config)
    ledger = Ledger(sweep) if sweep else None
    options = config.get("sweep") or {}
    finished = _finished(key, directory, Path(str(config["output"])), config) if sweep else None
    if finished is not None:
        result = _take_over(finished, directory)
        if ledger:
            ledger.move(key, "done", reused=str(finished))
        say(f"  {label}: finished before, taken over from {shortened(str(finished))} (trial.fresh=true runs it again)")
        return result
    if ledger and options.get("fail_fast") and "failed" in ledger.states().values():
        return _not_started(key, directory)
    watch = Stopwatch()
    if ledger:
        ledger.move(key, "running")
    outputs.write_status(directory, "running", key=key)
    files = {g: p for g in choices if (p := option_file(g, choices[g], folders))}
    words = ["run", *config_dir_words(folders), *typed]
    outputs.write_json(directory / "environment.json", environment(config, command_line(words), files, folders))
    stage = "prepare"
    try:
        with _time_limit((config.get("trial") or {}).get("timeout")):
            prepared = PREPARED.pop(key, None) or prepare(config, files)
            stage = "trial"
            result = _run(prepared, directory, words, typed, key, auto_graph=sweep is None)
    except KeyboardInterrupt:
        outputs.write_status(directory, "failed", key=key, stage=stage, error="interrupted")
        if ledger:
            ledger.move(key, "failed", error="interrupted")
        raise
    except BaseException as error:  # SystemExit of a library included: one trial never takes the sweep down
        result = _failure(error, stage, key, directory)
    result = {**result, "output_dir": str(directory), "key": key}
    if result["status"] == "ok":
        outputs.write_json(directory / "record.json", result)
        outputs.write_status(directory, "done", key=key, config_hash=config_hash(config))
    elif "stage" not in result:
        outputs.write_json(directory / "record.json", result)
        why = failed_rungs(result) or result.get("error", "failed")
        outputs.write_status(directory, "failed", key=key, stage="verification", error=why)
    if ledger:
        ledger.move(key, "done" if result["status"] == "ok" else "failed")
    outcome = (result.get("verdict") or {}).get("outcome", "")
    say(f"  {label}: {outcome if result['status'] == 'ok' else 'FAILED'} ({watch})")
    return result


def prepare(config: Mapping[str, Any], files: Mapping[str, Path]) -> Any:
    """Build and prepare the experiment of one configuration.

    Raises:
        RefusedError: with all problems.
    """
    from pipeline.experiment import build_experiment
    from pipeline.experiment import prepare as prepare_experiment

    here = Path.cwd()  # problems show the files as short as they can be opened from here
    shown = {g: p.relative_to(here) if p.is_relative_to(here) else p for g, p in files.items()}
    return prepare_experiment(build_experiment(config, shown))


def plain(cfg: DictConfig) -> dict[str, Any]:
    """A Hydra configuration as plain, resolved mappings, without Hydra's own part."""
    return {
        str(key): OmegaConf.to_container(cfg[key], resolve=True) if OmegaConf.is_config(cfg[key]) else cfg[key]
        for key in cfg
        if key != "hydra"
    }


def failed_rungs(result: Mapping[str, Any]) -> str:
    """`numerics failed: ...` for every rung that failed or could not be checked; "" if none did."""
    rungs = result.get("verification") or {}
    bad = [(name, r) for name, r in rungs.items() if r.get("status") in ("failed", "could_not_check")]
    return "; ".join(f"{name} {r['status'].replace('_', ' ')}: {r.get('detail', '')}" for name, r in bad)


def _run(
    prepared: Any, directory: Path, words: Sequence[str], typed: Sequence[str], key: str, auto_graph: bool
) -> dict[str, Any]:
    from pipeline.trial import run_trial

    command = [shlex.quote(word) for word in ("npu-recipes", *words)]
    record = run_trial(prepared, directory, command, key, typed, auto_graph)
    return json.loads(json.dumps(record.to_json(), default=str))


def _failure(error: BaseException, stage: str, key: str, directory: Path) -> dict[str, Any]:
    stage = str(getattr(error, "stage", stage))
    message = str(error) if hasattr(error, "stage") else f"{type(error).__name__}: {error}"
    problems: list[Problem] = list(error.problems) if isinstance(error, RefusedError) else []
    with contextlib.suppress(OSError):  # a full disk is the error, and must not hide itself
        trace = traceback.format_exc()
        outputs.write_status(directory, "failed", key=key, stage=stage, error=message, traceback=trace)
    say(f"  {stage} failed: {message}")
    return {
        "status": "failed",
        "stage": stage,
        "error": message,
        "verification": {},
        "verdict": {"outcome": "failed", "reason": message},
        "metrics": {},
        "targets": [],
        "calls_planned": None,
        "calls_observed": None,
        "problems": [p.to_json() for p in problems],
    }


def _not_started(key: str, directory: Path) -> dict[str, Any]:
    reason = "not started: an earlier trial failed and sweep.fail_fast is on"
    outputs.write_status(directory, "queued", key=key, error=reason)
    verdict = {"outcome": "not_run", "reason": reason}
    empty: dict[str, Any] = {"verification": {}, "metrics": {}, "targets": []}
    return {"status": "queued", "key": key, "output_dir": str(directory), "verdict": verdict, **empty}


def _finished(key: str, directory: Path, output: Path, config: Mapping[str, Any]) -> Path | None:
    """The directory of a finished trial with this key: this very one, or the newest of another sweep."""
    if (config.get("trial") or {}).get("fresh"):
        return None
    others = sorted((output / "multirun").glob(f"*/*/{key}"), reverse=True)
    for path in (directory, *others):
        status = outputs.read_json(path / "status.json")
        record = outputs.read_json(path / "record.json")
        if status and record and status.get("status") == "done" and status.get("key") == key:
            return path.resolve()
    return None


def _take_over(finished: Path, directory: Path) -> dict[str, Any]:
    result = outputs.read_json(finished / "record.json")
    if finished != directory.resolve():
        shutil.copytree(finished, directory, ignore=shutil.ignore_patterns(".hydra", "status.json"), dirs_exist_ok=True)
        shutil.copy2(finished / "status.json", directory / "status.json")
        result = {**result, "output_dir": str(directory)}
        outputs.write_json(directory / "record.json", result)
    return {**result, "reused": [*result.get("reused", ()), f"the whole trial, from {shortened(str(finished))}"]}


@contextlib.contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Raise in this thread when the time is over; only the main thread can have a limit."""
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TrialTimeoutError(f"took longer than trial.timeout={seconds}")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _resolve_trial_key(*, _root_: DictConfig) -> str:
    return trial_key(plain(_root_))


OmegaConf.register_new_resolver("trial_key", _resolve_trial_key, replace=True)
