"""`analyze`: a profile to its roofline, windows, candidates and scopes. Writes only where `output=DIR` says so."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.problems import Problem, RefusedError
from pipeline.analyze_model import find
from pipeline.analyze_setting import Setting, read_setting
from pipeline.compose import CONF
from pipeline.outputs import write_json, write_texts
from pipeline.progress import Stopwatch, say, shown

if TYPE_CHECKING:
    from pipeline.analysis.results import Analysis
    from pipeline.profile.ranks import RankTime
    from pipeline.profile.reader import Profiles
    from pipeline.profile.rows import Profile
    from pipeline.replay.findings import Findings
    from pipeline.simulator.machine import Machine


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
        findings: the decode step replayed, its candidates forecast, with a model the recipe; None without candidates.
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
    findings: "Findings | None" = None

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
            "forecast": self.findings.to_json() if self.findings else None,
            "output_dir": None if self.directory is None else str(self.directory),
            "problems": [p.to_json() for p in self.problems],
        }


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

    setting = read_setting(tokens, folders)
    watch = Stopwatch()
    profiles = read_profiles(setting.path)
    chosen, remarks = choose_profile(profiles, setting.rank)
    profile = profiles.profiles[chosen]
    analysis = analyse(profile, setting.machine, setting.options)
    if not analysis.phases:
        raise RefusedError([_no_such_phase(profile, setting.options.phase)])
    say(f"read and analysed {profile.kernels.height:,} kernels of {shown(profile.source)} ({watch})")
    findings = _forecast(profile, analysis, setting)
    late = findings.measured.problems() if findings else []
    found = tuple(dict.fromkeys([*setting.warnings, *profiles.problems, *remarks, *analysis.problems, *late]))
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
        findings=findings,
    )
    if setting.output is not None:
        write_analysis(setting.output, result)
    return result


def _forecast(profile: "Profile", analysis: "Analysis", setting: Setting) -> "Findings | None":
    """Replay the decode step, if there is one with candidates or a model to lay it over."""
    phase = analysis.phase("decode")
    if phase is None and setting.model is not None:
        message = "there is no decode step in the profile to lay over the model"
        fix = "Leave model= away to see the other phases, or set analysis.decode_rows."
        raise RefusedError([Problem("error", "no-decode-step", message, fix, "profile", str(profile.source))])
    if phase is None or not (phase.candidates or setting.model):
        return None
    watch = Stopwatch()
    found = find(profile, phase, setting.machine, setting.hardware, setting.model)
    say(f"replayed {len(found.measured.step):,} kernels, {len(found.tuned.alone)} forecasts ({watch})")
    return found


def write_analysis(directory: Path, result: AnalyzeResult) -> None:
    """report.md, analysis.json, the plots, and the recipe below `conf/`, which `--config-dir` takes.

    Raises:
        OSError: the directory cannot be written.
    """
    from pipeline.report.analysis import analysis_files

    files = analysis_files(result)
    recipe = result.findings.recipe if result.findings else None
    if recipe is not None:
        files[f"conf/recipe/{recipe.data['name']}.yaml"] = recipe.text
    write_texts(directory, files)
    write_json(directory / "analysis.json", json.loads(json.dumps(result.to_json(), default=str)))


def choose_profile(profiles: "Profiles", rank: int | None) -> tuple[int, list[Problem]]:
    """Which profile to analyse: the rank asked for, else the slowest of those that can be classified."""
    every = list(profiles.profiles)
    if rank is not None:
        mine = [n for n, p in enumerate(every) if p.rank == rank]
        # Of several runs of one rank those that can be classified, and of these the slowest.
        good = [n for n in mine if every[n].has_shapes or every[n].has_ratios] or mine
        if not mine:
            known = ", ".join(str(r) for r in sorted({p.rank for p in every if p.rank is not None}))
            message = f"there is no rank {rank}; " + (f"there are: {known}" if known else "no file says its rank")
            raise RefusedError([Problem("error", "no-such-rank", message, "Choose one of them.", "analysis.rank")])
        return max(good, key=lambda n: profiles.times[n].computing_us) if len(good) > 1 else good[0], []
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
