"""`compare BASELINE OPTIMISED`: two measured profiles against each other. Writes only where `output=DIR` says so."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.problems import Problem, RefusedError, raise_errors
from pipeline.analyze import choose_profile
from pipeline.analyze_setting import Setting, read_setting
from pipeline.compose import CONF
from pipeline.figures import Figure
from pipeline.outputs import write_json, write_texts
from pipeline.progress import Stopwatch, say, shown
from pipeline.record import ChecklistItem, Verdict, nested

if TYPE_CHECKING:
    from pipeline.comparison.changes import Change, Measured
    from pipeline.comparison.pairing import Pairs
    from pipeline.comparison.side import Side
    from pipeline.profile.reader import Profiles
    from pipeline.profile.rows import Profile
    from pipeline.simulator.machine import Machine

SIDES = ("baseline", "optimised profile")
# What tells an output directory of ours.
_OURS = ("plan.json", "ledger.jsonl", "environment.json")


@dataclass(frozen=True, eq=False)
class CompareResult:
    """What `compare` prints.

    Attributes:
        before, after: the two steps.
        pairs: which kernel is which.
        found: what was measured.
        checklist, verdict: the five points and the outcome.
        machine: for the HBM peak.
        assumed: the hardware was not given.
        top: movers and targets to list.
        language: of the report.
        directory: where the report was written; None if nowhere.
        problems: warnings.
    """

    before: "Side"
    after: "Side"
    pairs: "Pairs"
    found: "Measured"
    checklist: tuple[ChecklistItem, ...]
    verdict: Verdict
    machine: "Machine"
    assumed: bool
    top: int
    language: str
    directory: Path | None
    problems: tuple[Problem, ...]

    @property
    def phase(self) -> str:
        """Which steps were compared."""
        return self.before.phase.name

    def metrics(self) -> Mapping[str, Figure]:
        """Dotted name -> figure, names as those of a trial: `baseline.step`, `optimized.step`, `delta.step`, ..."""
        found = self.found
        parts: dict[str, Change | None] = {"step": found.step, "busy": found.busy, "idle": found.idle}
        parts |= {"target_kernels": found.target_sum, "windows": found.windows, "steady_kernels": found.steady}
        figures: dict[str, Figure] = {}
        for name, part in parts.items():
            if part is not None:
                sides = {"baseline": part.before, "optimized": part.after, "delta": part.faster}
                figures |= {f"{side}.{name}": figure for side, figure in sides.items() if figure is not None}
        return figures

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the verb."""
        found, pairs = self.found, self.pairs
        return {
            "status": "ok",
            "baseline": _side_json(self.before),
            "optimized": _side_json(self.after),
            "hardware": self.machine.name,
            "phase": self.phase,
            "kernels": {
                "paired": len(pairs.left),
                "only_baseline": len(pairs.only_left),
                "only_optimized": len(pairs.only_right),
                "copies": len(pairs.copies),
            },
            "verdict": self.verdict.to_json(self.language),
            "checklist": [point.to_json(self.language) for point in self.checklist],
            "metrics": nested(self.metrics()),
            "targets": [target.to_json() for target in found.targets],
            "streams": [stream.to_json() for stream in found.streams],
            "slower": [change.to_json() for change in found.slower],
            "movers": [change.to_json() for change in found.movers[: self.top]],
            "copies": found.copies.to_json() if found.copies else None,
            "output_dir": None if self.directory is None else str(self.directory),
            "problems": [p.to_json() for p in self.problems],
        }


def run_compare(paths: Sequence[str], tokens: Sequence[str], folders: Sequence[Path] = (CONF,)) -> CompareResult:
    """Read both, pair their kernels, measure, judge, and write the report if `output=` was given.

    Args:
        paths: of the baseline and the optimised profile.
        tokens: overrides as typed.
        folders: config folders; ours is among them.

    Raises:
        RefusedError: the command line is wrong, a profile is not usable, or the two can't be compared.
    """
    from pipeline.comparison.checks import drift, forbidding, unknown_targets, weakening
    from pipeline.comparison.judge import checklist, find_signals, verdict
    from pipeline.comparison.measure import measure
    from pipeline.comparison.pairing import pair

    setting = read_setting(tokens, folders, "compare")
    wanted = _wanted(setting.config)
    watch = Stopwatch()
    before, after, problems = _sides([Path(p) for p in paths], setting)
    raise_errors(unknown_targets(before, wanted))
    try:
        pairs = pair(before, after)
    except ValueError as error:
        fix = "Profile fewer kernels a step, for example fewer layers."
        raise RefusedError([Problem("error", "step-too-long", str(error), fix)]) from error
    problems += raise_errors(forbidding(before, after, pairs))
    found = measure(before, after, pairs, setting.machine.hbm_peak, wanted)
    points = checklist(found)
    problems = [*setting.warnings, *problems, *weakening(before, after, pairs), *drift(found)]
    say(f"compared {before.steps} and {after.steps} steps of {len(before)} and {len(after)} kernels ({watch})")
    result = CompareResult(
        before=before,
        after=after,
        pairs=pairs,
        found=found,
        checklist=tuple(points),
        verdict=verdict(found, points, find_signals(found, points)),
        machine=setting.machine,
        assumed=setting.assumed,
        top=setting.top,
        language=setting.language,
        directory=setting.output,
        problems=tuple(dict.fromkeys(problems)),
    )
    if setting.output is not None:
        write_comparison(setting.output, result)
    return result


def write_comparison(directory: Path, result: CompareResult) -> None:
    """report.md, comparison.json and the plot.

    Raises:
        OSError: the directory cannot be written.
    """
    from pipeline.report.comparison import comparison_files

    write_texts(directory, comparison_files(result))
    write_json(directory / "comparison.json", json.loads(json.dumps(result.to_json(), default=str)))


def _sides(paths: Sequence[Path], setting: Setting) -> "tuple[Side, Side, list[Problem]]":
    """Both profiles read and analysed; of many ranks the baseline's slowest, and the same rank of the other."""
    problems: list[Problem] = []
    found = []
    for path in paths:
        try:
            found.append(_read(path))
        except RefusedError as refused:
            problems += refused.problems
    remarks = raise_errors(problems)
    chosen, more = choose_profile(found[0], setting.rank)
    remarks += more
    other = _like(found[1], found[0].profiles[chosen])
    if other is None:
        other, more = choose_profile(found[1], setting.rank)
        remarks += more
    numbers = (chosen, other)
    sides = []
    for path, profiles, number, word in zip(paths, found, numbers, SIDES, strict=True):
        try:
            side, more = _side(path, profiles, number, setting, word)
        except RefusedError as refused:
            problems += refused.problems
            continue
        sides.append(side)
        remarks += [*profiles.problems, *more]
    raise_errors(problems)
    return sides[0], sides[1], remarks


def _like(profiles: "Profiles", model: "Profile") -> int | None:
    """The profile of the same rank, of several captures one of the same device and kind; None if there is none."""
    mine = [(n, p) for n, p in enumerate(profiles.profiles) if p.rank == model.rank]
    usable = [(n, p) for n, p in mine if p.has_shapes or p.has_ratios] or mine
    if not usable:
        return None
    return max(usable, key=lambda found: (found[1].device == model.device, found[1].kind == model.kind, -found[0]))[0]


def _read(path: Path) -> "Profiles":
    from pipeline.profile.reader import read_profiles

    try:
        return read_profiles(path)
    except RefusedError as refused:
        if path.is_dir() and any((path / name).exists() for name in _OURS):
            message = f"{shown(path)} is an output directory of npu-recipes: its times are modelled, it has no profile"
            fix = (
                "Give the profiles of two runs on an NPU: `python run_on_npu.py --build ... --profile DIR` of that "
                "directory makes DIR/baseline_rank0 and DIR/optimized_rank0. `reproduce DIR` compares modelled trials."
            )
            raise RefusedError([Problem("error", "output-directory", message, fix, None, str(path))]) from refused
        raise


def _side(path: Path, profiles: "Profiles", number: int, setting: Setting, word: str) -> "tuple[Side, list[Problem]]":
    from pipeline.analysis.analyse import analyse
    from pipeline.comparison.side import Side

    profile = profiles.profiles[number]
    analysis = analyse(profile, setting.machine, setting.options)
    wanted = setting.options.phase or "decode"
    phase = analysis.phase(wanted)
    if phase is None:
        others = ", ".join(p.name for p in analysis.phases)
        message = f"the {word} has no {wanted} step" + (f", only {others}" if others else "")
        fix = f"Compare other steps with analysis.phase={analysis.phases[0].name}." if analysis.phases else ""
        raise RefusedError([Problem("error", "no-such-phase", message, fix, "analysis.phase", str(profile.source))])
    # What the analysis says about other phases and about candidates does not concern a comparison.
    kept = [p for p in analysis.problems if p.code not in ("one-step", "many-targets")]
    return Side.of(path, profile, analysis, phase), [p for p in kept if ": " not in p.message or _about(p, wanted)]


def _about(problem: Problem, phase: str) -> bool:
    word = problem.message.partition(":")[0]
    return word == phase or word not in ("decode", "prefill", "training", "unknown")


def _wanted(config: Mapping[str, Any]) -> tuple[str, ...]:
    """`compare.targets`, a label or a list of them."""
    group = config.get("compare")
    value = group.get("targets") if isinstance(group, Mapping) else group
    labels = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(labels, list | tuple) or not all(isinstance(label, str) for label in labels):
        message = f"`{value}` is no list of labels"
        fix = "Write the labels that compare prints: 'compare.targets=[MatMulV3 4/7]'."
        raise RefusedError([Problem("error", "bad-value", message, fix, "compare.targets")])
    return tuple(labels)


def _side_json(side: "Side") -> dict[str, Any]:
    phase = side.phase
    return {
        "path": str(side.path),
        "source": str(side.profile.source),
        "rank": side.profile.rank,
        "device": side.profile.device,
        "kind": side.profile.kind,
        "steps": {
            "used": side.steps,
            "found_by": phase.found_by,
            "dropped": phase.dropped,
            "different": phase.different,
        },
        "kernels": len(side),
        "rows": phase.rows,
    }
