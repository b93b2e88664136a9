"""`backend=replay profile=PATH`: the decode step of a trial with the kernel times of a profile."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.problems import Problem, RefusedError, raise_errors

if TYPE_CHECKING:
    from models.workload import Workload
    from pipeline.replay.measured import Measured
    from pipeline.simulator.machine import Machine


def replays(config: Mapping[str, Any]) -> bool:
    """Whether the configuration asks for a replay."""
    backend = config.get("backend")
    return isinstance(backend, Mapping) and backend.get("name") == "replay"


def replay_problems(config: Mapping[str, Any]) -> list[Problem]:
    """What can be told before anything is read: no profile, or one that nothing reads."""
    profile = config.get("profile")
    if replays(config):
        if not profile:
            fix = "Add profile=PATH: a kernel_details.csv, a run, or a folder of many ranks."
            return [Problem("error", "no-profile", "backend=replay needs a profile", fix, "profile")]
        if not Path(str(profile)).expanduser().exists():
            message = f"`{profile}` does not exist"
            return [Problem("error", "no-such-path", message, "Check the path.", "profile")]
        return []
    if profile:
        message = "profile= has no effect on a simulated trial"
        fix = "Add backend=replay to use its times, or look at it: npu-recipes analyze profile=PATH"
        return [Problem("warning", "profile-unused", message, fix, "profile")]
    return []


def profile_files(config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> SHA-256 (16 hex digits) of the profile's files; empty without a replay."""
    profile = config.get("profile")
    if not replays(config) or not profile:
        return {}
    root = Path(str(profile)).expanduser()
    files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.suffix in (".csv", ".json"))
    found = {}
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            continue  # who reads the profile says what is wrong
        name = file.name if file == root else file.relative_to(root).as_posix()
        found[f"profile/{name}"] = _hash(file, stat.st_size, stat.st_mtime_ns)
    return found


@cache
def _hash(file: Path, size: int, modified: int) -> str:
    from pipeline.environment import file_hash

    return file_hash(file)


def read_measured(config: Mapping[str, Any], machine: "Machine", workload: "Workload") -> "Measured":
    """Read the profile, find its decode step, and lay it over the model.

    Args:
        config: composed; `profile` and `analysis` are read.
        machine: as configured, for the execution mode.
        workload: the traced decode step.

    Raises:
        RefusedError: no usable profile, no decode step in it, or one of another model or deployment.
    """
    from pipeline.analysis.analyse import analyse
    from pipeline.analyze import choose_profile
    from pipeline.analyze_setting import analysis_options
    from pipeline.profile.reader import read_profiles
    from pipeline.replay.measured import measure

    options, rank = None, None
    if config.get("analysis") is not None:
        options, rank, _, problems = analysis_options(config)
        raise_errors(problems)
    profiles = read_profiles(str(config["profile"]))
    chosen, remarks = choose_profile(profiles, rank)
    profile = profiles.profiles[chosen]
    # The phase is no choice here, and leaving the others out would hide which ones there are.
    analysis = analyse(profile, machine, replace(options, phase=None) if options is not None else None)
    phase = analysis.phase("decode")
    if phase is None:
        names = ", ".join(p.name for p in analysis.phases) or "none"
        message = f"there is no decode step in the profile (phases: {names})"
        fix = "Profile decode steps, or set analysis.decode_rows to the most tokens that a decode step has."
        raise RefusedError([Problem("error", "no-decode-step", message, fix, "profile", str(profile.source))])
    remarks = [p for p in (*profiles.problems, *remarks, *analysis.problems) if p.severity == "warning"]
    return replace(measure(profile, phase, machine, workload), remarks=tuple(remarks))
