"""`analyze`: a profile to its roofline, windows, candidates and scopes. Writes only where `output=DIR` says so."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.problems import Problem, RefusedError, raise_errors
from pipeline.compose import CONF, check_values, hydra, recompose, unknown_option
from pipeline.config_files import check_groups, clashes, files_of, option_file
from pipeline.outputs import writable_problems, write_json, write_text
from pipeline.overrides import UserOverride, read_overrides
from pipeline.progress import Stopwatch, say, shown
from pipeline.reporter import located

if TYPE_CHECKING:
    from pipeline.analysis.analyse import AnalysisOptions
    from pipeline.analysis.results import Analysis
    from pipeline.profile.ranks import RankTime
    from pipeline.profile.reader import Profiles
    from pipeline.profile.rows import Profile
    from pipeline.simulator.machine import Machine

HARDWARE = "atlas_a2"  # unless the command line says otherwise; a profile does not name its device
PHASES = ("decode", "prefill", "training", "unknown")
# Keys that mean something here; the others belong to recipes and trials.
_KEYS = ("profile", "analysis", "hardware", "format", "report", "output")
_LATER = ("model", "deployment")


@dataclass(frozen=True, eq=False)
class AnalyzeResult:
    """What `analyze` prints.

    Attributes:
        analysis: of the profile that was chosen.
        profile, machine: what it was made of.
        ranks: the profiles that were found, with their times; empty if there is one only.
        chosen: index of the analysed one.
        top: memory-bound operators to list.
        assumed: the hardware was not given.
        language: of the report.
        directory: where the report was written; None if nowhere.
        problems: warnings.
    """

    analysis: "Analysis"
    profile: "Profile"
    machine: "Machine"
    ranks: "tuple[RankTime, ...]"
    chosen: int
    top: int
    assumed: bool
    language: str
    directory: Path | None
    problems: tuple[Problem, ...]

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the verb."""
        return {
            "status": "ok",
            **self.analysis.to_json(self.top),
            "ranks": [
                {
                    "source": str(r.profile.source),
                    "rank": r.profile.rank,
                    "device": r.profile.device,
                    "kind": r.profile.kind,
                    "kernels": r.profile.kernels.height,
                    "computing_us": r.computing_us,
                    "busy_us": r.busy_us,
                    "span_us": r.span_us,
                    "analysed": n == self.chosen,
                }
                for n, r in enumerate(self.ranks)
            ],
            "output_dir": None if self.directory is None else str(self.directory),
            "problems": [p.to_json() for p in self.problems],
        }


@dataclass(frozen=True)
class _Setting:
    """The command line, read and checked."""

    path: Path
    machine: "Machine"
    options: "AnalysisOptions"
    rank: int | None
    top: int
    assumed: bool
    language: str
    output: Path | None
    warnings: list[Problem]


def run_analyze(tokens: Sequence[str], folders: Sequence[Path] = (CONF,)) -> AnalyzeResult:
    """Read, analyse, and write the report if `output=` was given.

    Args:
        tokens: overrides as typed.
        folders: config folders; ours is among them.

    Raises:
        RefusedError: the command line is wrong, there is no usable profile, or it can't be classified.
    """
    from pipeline.analysis.analyse import analyse
    from pipeline.profile.reader import read_profiles

    setting = _read_setting(tokens, folders)
    watch = Stopwatch()
    profiles = read_profiles(setting.path)
    chosen, remarks = choose_profile(profiles, setting.rank)
    profile = profiles.profiles[chosen]
    analysis = analyse(profile, setting.machine, setting.options)
    if not analysis.phases:
        raise RefusedError([_no_such_phase(profile, setting.options.phase)])
    say(f"read and analysed {profile.kernels.height:,} kernels of {shown(profile.source)} ({watch})")
    found = tuple(dict.fromkeys([*setting.warnings, *profiles.problems, *remarks, *analysis.problems]))
    result = AnalyzeResult(
        analysis=analysis,
        profile=profile,
        machine=setting.machine,
        ranks=tuple(profiles.times) if len(profiles.profiles) > 1 else (),
        chosen=chosen,
        top=setting.top,
        assumed=setting.assumed,
        language=setting.language,
        directory=setting.output,
        problems=found,
    )
    if setting.output is not None:
        write_analysis(setting.output, result)
    return result


def write_analysis(directory: Path, result: AnalyzeResult) -> None:
    """report.md, analysis.json and the plots.

    Raises:
        OSError: the directory cannot be written.
    """
    from pipeline.report.analysis import analysis_files

    for name, text in analysis_files(result).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    write_json(directory / "analysis.json", json.loads(json.dumps(result.to_json(), default=str)))


def choose_profile(profiles: "Profiles", rank: int | None) -> tuple[int, list[Problem]]:
    """Which profile to analyse: the rank asked for, else the slowest of those that can be classified."""
    every = list(profiles.profiles)
    if rank is not None:
        mine = [n for n, p in enumerate(every) if p.rank == rank]
        if not mine:
            known = ", ".join(str(p.rank) for p in every)
            message = f"there is no rank {rank}; there are: {known}"
            raise RefusedError([Problem("error", "no-such-rank", message, "Choose one of them.", "analysis.rank")])
        return mine[0], []
    usable = [n for n, p in enumerate(every) if p.has_shapes or p.has_ratios]
    if not usable:
        return 0, []  # the analysis says why it can't be classified
    if len(every) == 1:
        return 0, []
    times = list(profiles.times)
    slowest = max(usable, key=lambda n: times[n].computing_us)
    left = [every[n].label for n in range(len(every)) if n not in usable]
    if left:
        message = f"{', '.join(left)} can't be classified (no shapes, no ratios) and took no part"
        return slowest, [Problem("warning", "cannot-classify", message, "", "profile")]
    return slowest, []


def _no_such_phase(profile: "Profile", phase: str | None) -> Problem:
    message = f"there is no {phase} step in this profile"
    return Problem(
        "error", "no-such-phase", message, "Leave analysis.phase away.", "analysis.phase", str(profile.source)
    )


def _read_setting(tokens: Sequence[str], folders: Sequence[Path]) -> _Setting:
    """Compose and check everything, and refuse it all at once."""
    overrides, problems = read_overrides(tokens)
    problems += [p for o in overrides if (p := _out_of_place(o)) is not None]
    overrides = [o for o in overrides if o.key.partition(".")[0] in _KEYS]
    chosen = {o.key: o.values[0] for o in overrides if o.key == "hardware" and o.values}
    choices = {"hardware": HARDWARE, **chosen}
    if option_file("hardware", choices["hardware"], folders) is None:
        problems.append(unknown_option("hardware", choices["hardware"], folders))
        choices["hardware"] = HARDWARE
    problems += clashes(choices, folders)
    texts = [f"hardware={choices['hardware']}"]
    texts += [o.hydra(o.values[0] if o.values else None) for o in overrides if o.key != "hardware"]
    with hydra(folders):
        config, problem = recompose(texts, folders)
    if problem is not None:
        raise RefusedError([*problems, problem])
    files = files_of(choices, folders)
    problems += check_groups(config, files) + check_values(config)
    machine, found = _machine(config, files)
    problems += found
    options, rank, top, found = _options(config)
    problems += found
    path = config.get("profile")
    if not path:
        fix = "Add profile=PATH: a kernel_details.csv or op_summary_*.csv, a run, or a folder of many ranks."
        problems.append(Problem("error", "no-profile", "no profile was given", fix, "profile"))
    output = None
    if any(o.key == "output" for o in overrides) and isinstance(config.get("output"), str):
        output = Path(config["output"])
        problems += writable_problems(output, 1)
    warnings = raise_errors(problems)
    assert machine is not None and options is not None
    language = str(config["report"]["language"])
    assumed = "hardware" not in chosen
    return _Setting(Path(str(path)), machine, options, rank, top, assumed, language, output, warnings)


def _out_of_place(override: UserOverride) -> Problem | None:
    top = override.key.partition(".")[0]
    if override.is_sweep:
        message = f"`{override.typed}` has more than one value, and `analyze` does not sweep"
        return Problem("error", "sweep-without-m", message, "Give one value.", override.key)
    if top in _LATER:
        message = f"`{override.typed}`: mapping candidates to the modules of a model is not in this version"
        return Problem("error", "mapping-not-available", message, f"Leave {top}= away.", override.key)
    if top not in _KEYS:
        message = f"`{override.typed}` has no meaning for `analyze`"
        return Problem("error", "no-overrides", message, f"Keys: {', '.join(_KEYS)}.", override.key)
    return None


def _machine(config: Mapping[str, Any], files: Mapping[str, Path]) -> "tuple[Machine | None, list[Problem]]":
    from pipeline.simulator.machine import Machine

    group = config.get("hardware")
    if not isinstance(group, Mapping):
        return None, []  # told by check_groups
    try:
        machine = Machine.from_mapping(group, str(files["hardware"]))
    except RefusedError as refused:
        return None, [located(p, config, files) for p in refused.problems]
    return machine, list(machine.warnings)


def _options(config: Mapping[str, Any]) -> "tuple[AnalysisOptions | None, int | None, int, list[Problem]]":
    from pipeline.analysis.analyse import AnalysisOptions

    group = config.get("analysis")
    if not isinstance(group, Mapping):
        message = f"`analysis` must be a mapping, it is `{group}`"
        return None, None, 0, [Problem("error", "not-a-mapping", message, "Set analysis.KEY=VALUE.", "analysis")]
    problems = []

    def wrong(key: str, what: str) -> None:
        message = f"`{group.get(key)}` is not {what}"
        problems.append(Problem("error", "bad-value", message, "", f"analysis.{key}"))

    def whole(key: str, least: int) -> int | None:
        value = group.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            wrong(key, f"a whole number of at least {least}")
            return None
        return value

    coefficient = Decimal("0.5")
    try:
        value = group.get("coefficient")
        coefficient = Decimal("nan") if isinstance(value, bool) else Decimal(str(value))
    except InvalidOperation:
        coefficient = Decimal("nan")
    if not (coefficient.is_finite() and 0 < coefficient <= 1):
        wrong("coefficient", "a number above 0 and at most 1")
        coefficient = Decimal("0.5")
    phase = group.get("phase")
    if phase is not None and phase not in PHASES:
        wrong("phase", f"one of {', '.join(PHASES)}")
    rows, rank = whole("decode_rows", 1), whole("rank", 0)
    top = whole("top", 1)
    if group.get("top") is None:
        wrong("top", "a whole number of at least 1")
    options = AnalysisOptions(coefficient, rows, phase if phase in PHASES else None)
    return options, rank, top or 10, problems
