"""`analyze model=NAME deployment=NAME`: candidates in the words of the model, their forecast, and a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.problems import Problem, RefusedError
from pipeline.config_files import option_file
from pipeline.reporter import located
from pipeline.transformers_choice import choice_problems, default_deployment, option_name

if TYPE_CHECKING:
    from models.deployment import Deployment
    from models.loading import ModelSpec
    from pipeline.analysis.results import PhaseAnalysis
    from pipeline.profile.rows import Profile
    from pipeline.replay.findings import Findings
    from pipeline.simulator.machine import Machine

GROUPS = ("model", "deployment", "runtime")
RUNTIME = "ge_graph"  # the graph mode that decode is served in, unless the command line says otherwise


@dataclass(frozen=True)
class ModelSetting:
    """The model that was profiled, as the command line says.

    Attributes:
        spec, deployment: read and checked.
        exe_mode: execution mode of the recipe.
        names: option of each config group.
    """

    spec: "ModelSpec"
    deployment: "Deployment"
    exe_mode: str
    names: Mapping[str, str]


def model_choices(chosen: Mapping[str, str], folders: Sequence[Path]) -> tuple[dict[str, str], list[Problem]]:
    """Group -> option of the groups that a model needs; empty without a model.

    Args:
        chosen: groups named on the command line.
        folders: config folders.
    """
    if "model" not in chosen:
        return {}, [
            Problem("error", "needs-model", f"{group}= says nothing without model=", "Add model=NAME.", group)
            for group in GROUPS
            if group in chosen
        ]
    choices = {"runtime": RUNTIME, **default_deployment(chosen), **{g: chosen[g] for g in GROUPS if g in chosen}}
    problems = choice_problems(choices)
    if "deployment" not in choices:
        known = ", ".join(sorted({p.stem for f in folders for p in (f / "deployment").glob("*.yaml")}))
        fix = f"Add deployment=NAME, as the model was served when it was profiled: {known}."
        problems.append(Problem("error", "no-deployment", "model= needs deployment=", fix, "deployment"))
    return choices, problems


def read_model(
    config: Mapping[str, Any], choices: Mapping[str, str], folders: Sequence[Path]
) -> tuple[ModelSetting | None, list[Problem]]:
    """Read the composed groups; None where one has a problem."""
    from models.deployment import Deployment
    from models.loading import ModelSpec

    files = {g: f for g in GROUPS if (f := option_file(g, option_name(g, choices[g]) or "", folders))}
    problems: list[Problem] = []
    parts: list[Any] = []
    for group, make in (("model", ModelSpec.from_mapping), ("deployment", Deployment.from_mapping)):
        try:
            parts.append(make(config.get(group) or {}, str(files.get(group, "")) or None))
        except RefusedError as refused:
            problems += [located(p, config, files) for p in refused.problems]
    if problems:
        return None, problems
    exe_mode = str((config.get("runtime") or {}).get("exe_mode", RUNTIME))
    return ModelSetting(parts[0], parts[1], exe_mode, dict(choices)), []


def find(
    profile: "Profile", phase: "PhaseAnalysis", machine: "Machine", hardware: str, setting: ModelSetting | None
) -> "Findings":
    """Replay the step and forecast its candidates; with a model, name them and write the recipe.

    Args:
        profile, phase: the analysed decode step.
        machine: as configured.
        hardware: its option.
        setting: the model; None without one.

    Raises:
        RefusedError: the model can't be loaded, or the profile is of another one.
    """
    from pipeline.mapping.emit import Header
    from pipeline.replay.findings import model_findings, profile_findings
    from pipeline.replay.measured import measure

    if setting is None:
        return profile_findings(measure(profile, phase, machine.for_mode(RUNTIME)), phase)
    from models.loading import load
    from models.trace import trace

    loaded = load(setting.spec, setting.deployment, setting.exe_mode, "full")
    measured = measure(profile, phase, machine.for_mode(setting.exe_mode), trace(loaded))
    names = setting.names
    name = f"{names['model']}/from_profile"
    lines = (
        f"Written by `analyze` from {profile.source.name} ({phase.steps} decode steps, {profile.label}).",
        "Times are measured, sizes that fit and savings are modelled. Nothing in it was tried on a device.",
        "",
        f"  npu-recipes --config-dir DIR/conf validate recipe={name}",
        f"  npu-recipes --config-dir DIR/conf -m recipe={name} recipe.prefetch.coefficient=0.5,0.7,1.0",
        "",
    )
    header = Header(name, names["model"], names["deployment"], hardware, names["runtime"], lines)
    return model_findings(measured, phase, loaded, header)
