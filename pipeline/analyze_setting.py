"""The command line of the verbs that read profiles, `analyze` and `compare`: composed, checked, refused all at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.problems import Problem, RefusedError, raise_errors
from pipeline.analyze_model import GROUPS, ModelSetting, model_choices, read_model
from pipeline.compose import check_values, hydra, recompose, unknown_option
from pipeline.config_files import check_groups, clashes, files_of, option_file
from pipeline.outputs import writable_problems
from pipeline.overrides import UserOverride, read_overrides
from pipeline.reporter import located
from pipeline.transformers_choice import hydra_choice, option_name

if TYPE_CHECKING:
    from pipeline.analysis.analyse import AnalysisOptions
    from pipeline.simulator.machine import Machine

HARDWARE = "atlas_a2"  # unless the command line says otherwise; a profile does not name its device
PHASES = ("decode", "prefill", "training", "unknown")
# Verb -> keys that mean something to it; the others belong to recipes and trials. `compare` reads its line here too.
_KEYS = {
    "analyze": ("profile", "analysis", "hardware", *GROUPS, "format", "report", "output"),
    "compare": ("compare", "analysis", "hardware", "format", "report", "output"),
}


@dataclass(frozen=True)
class Setting:
    """The command line, read and checked; `compare` has its two paths beside it."""

    path: Path
    config: Mapping[str, Any]
    machine: "Machine"
    options: "AnalysisOptions"
    rank: int | None
    top: int
    assumed: bool
    language: str
    output: Path | None
    warnings: list[Problem]
    model: ModelSetting | None
    hardware: str


def read_setting(tokens: Sequence[str], folders: Sequence[Path], verb: str = "analyze") -> Setting:
    """Compose and check everything, and refuse it all at once.

    Args:
        tokens: overrides as typed.
        folders: config folders.
        verb: `analyze`, or `compare`, whose profiles are no overrides.

    Raises:
        RefusedError: with all problems.
    """
    keys = _KEYS[verb]
    overrides, problems = read_overrides(tokens)
    problems += [p for o in overrides if (p := _out_of_place(o, verb)) is not None]
    overrides = [o for o in overrides if o.key.partition(".")[0] in keys]
    chosen = {o.key: o.values[0] for o in overrides if o.key in ("hardware", *GROUPS) and o.values}
    of_model, found = model_choices(chosen, folders)
    problems += found
    choices = {"hardware": HARDWARE, **({"hardware": chosen["hardware"]} if "hardware" in chosen else {}), **of_model}
    unknown = [g for g, name in choices.items() if option_file(g, option_name(g, name) or "", folders) is None]
    problems += [unknown_option(g, choices[g], folders) for g in unknown]
    choices = {g: n for g, n in choices.items() if g not in unknown} | (
        {"hardware": HARDWARE} if "hardware" in unknown else {}
    )
    problems += clashes(choices, folders)
    texts = [text for group, name in choices.items() for text in hydra_choice(group, name)]
    inside = [*choices, *(k for k in keys if k not in GROUPS)]  # no values of a group that was refused already
    texts += [
        o.hydra(o.values[0] if o.values else None)
        for o in overrides
        if o.key not in ("hardware", *GROUPS)
        and (o.key.partition(".")[0] not in GROUPS or o.key.partition(".")[0] in inside)
    ]
    with hydra(folders):
        config, problem = recompose(texts, folders)
    if problem is not None:
        raise RefusedError([*problems, problem])
    files = files_of(choices, folders)
    problems += check_groups(config, files) + check_values(config)
    machine, found = _machine(config, files)
    problems += found
    options, rank, top, found = analysis_options(config)
    problems += found
    path = config.get("profile")
    if not path and "profile" in keys:
        fix = "Add profile=PATH: a kernel_details.csv or op_summary_*.csv, a run, or a folder of many ranks."
        problems.append(Problem("error", "no-profile", "no profile was given", fix, "profile"))
    output = None
    if any(o.key == "output" for o in overrides) and isinstance(config.get("output"), str):
        output = Path(config["output"])
        problems += writable_problems(output, 1)
    model = None
    if not any(p.severity == "error" for p in problems) and of_model:
        model, found = read_model(config, choices, folders)
        problems += found
    warnings = raise_errors(problems)
    assert machine is not None and options is not None
    language = str(config["report"]["language"])
    assumed = "hardware" not in chosen
    return Setting(
        Path(str(path)),
        config,
        machine,
        options,
        rank,
        top,
        assumed,
        language,
        output,
        warnings,
        model,
        choices["hardware"],
    )


def _out_of_place(override: UserOverride, verb: str) -> Problem | None:
    top = override.key.partition(".")[0]
    if override.is_sweep:
        message = f"`{override.typed}` has more than one value, and `{verb}` does not sweep"
        return Problem("error", "sweep-without-m", message, "Give one value.", override.key)
    if top not in _KEYS[verb] or (verb == "compare" and override.key == "analysis.coefficient"):
        message = f"`{override.typed}` has no meaning for `{verb}`"
        return Problem("error", "no-overrides", message, f"Keys: {', '.join(_KEYS[verb])}.", override.key)
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


def analysis_options(config: Mapping[str, Any]) -> "tuple[AnalysisOptions | None, int | None, int, list[Problem]]":
    """Options, rank and number of operators to list of the key `analysis`, and what is wrong with them."""
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
