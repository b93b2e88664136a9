"""From a composed configuration to something that can be run: every part read, checked, loaded, traced, resolved."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from models.problems import Problem, RefusedError, raise_errors
from pipeline.environment import interpreter_problems
from pipeline.memo import MEMO, fingerprint
from pipeline.recipe import Recipe, parse_recipe
from pipeline.replay.backend import profile_files, read_measured, replay_problems, replays
from pipeline.yaml_source import YamlSource

if TYPE_CHECKING:
    from models.deployment import Deployment
    from models.loading import LoadedModel, ModelSpec
    from models.workload import Workload
    from pipeline.replay.measured import Measured
    from pipeline.resolve import Resolution
    from pipeline.simulator import Machine
    from transforms.realisation import Realisation

T = TypeVar("T")


@dataclass(frozen=True)
class Experiment:
    """The parts of one grid point, each read and checked by itself.

    Attributes:
        config: the composed configuration, plain.
        exe_mode: the declared execution mode.
        draws, seed: of the simulator's bands.
        problems: found so far. Errors of the recipe are among them: what could be read of it can still be resolved, so
            that `prepare` reports everything at once.
        files: config group -> the YAML file behind it, for file and line of problems.
    """

    config: Mapping[str, Any]
    model: "ModelSpec"
    recipe: Recipe
    deployment: "Deployment"
    machine: "Machine"
    exe_mode: str
    draws: int
    seed: int
    problems: tuple[Problem, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def transform(self) -> str:
        """`source` or `wrap`."""
        return str(self.config.get("transform", "source"))

    @property
    def language(self) -> str:
        """Language of the report, `en` or `zh`."""
        return str((self.config.get("report") or {}).get("language", "en"))

    def wants(self, rung: str) -> bool | str:
        """What `verify.<rung>` says: True, False or `auto`."""
        value = (self.config.get("verify") or {}).get(rung, True)
        return value if isinstance(value, bool) else str(value)

    @property
    def model_key(self) -> str:
        """Equal for two experiments that run the same model in the same deployment and mode."""
        return fingerprint(self.config["model"], self.config["deployment"], self.exe_mode)

    @property
    def machine_key(self) -> str:
        """Equal for two experiments with the same machine model, draws of its unknowns, and measured times."""
        measured = profile_files(self.config), self.config.get("analysis")
        return fingerprint(self.config["hardware"], self.exe_mode, self.draws, self.seed, *measured)


@dataclass(frozen=True)
class Prepared:
    """An experiment whose recipe was resolved on the real model, full size and tiny.

    Attributes:
        full: full size on `meta`.
        tiny: the same structure with small numbers on CPU.
        workload: one decode step of `full`; in a replay, with the times of the profile.
        machine: the machine model; in a replay, with what the profile says about it.
        measured: the profile laid over the model, in a replay.
        resolution: plan and matches on `full`.
        tiny_resolution: plan on `tiny`, with the byte counts of `full`.
        realisation: the plan as code; None where this interpreter can't rewrite source.
        problems: all warnings.
        reused: what was taken over from another grid point.
    """

    experiment: Experiment
    full: "LoadedModel"
    tiny: "LoadedModel"
    workload: "Workload"
    resolution: "Resolution"
    tiny_resolution: "Resolution"
    realisation: "Realisation | None"
    problems: tuple[Problem, ...]
    machine: "Machine"
    measured: "Measured | None" = None
    reused: tuple[str, ...] = ()


def build_experiment(config: Mapping[str, Any], sources: Mapping[str, Path] | None = None) -> Experiment:
    """Read every part of a composed configuration.

    Args:
        config: plain mapping with the keys of `conf/config.yaml`.
        sources: group -> the YAML file behind it, for file and line of problems.

    Raises:
        RefusedError: with the problems of all parts, if anything but the recipe has an error.
    """
    from models.deployment import Deployment
    from models.loading import ModelSpec
    from pipeline.simulator import Machine

    sources = sources or {}
    problems: list[Problem] = []

    def read(group: str, make: Callable[[Mapping[str, Any], str | None], T]) -> T | None:
        file = sources.get(group)
        try:
            return make(config.get(group) or {}, str(file) if file else None)
        except RefusedError as refused:
            problems.extend(refused.problems)
            return None

    model = read("model", ModelSpec.from_mapping)
    deployment = read("deployment", Deployment.from_mapping)
    machine = read("hardware", Machine.from_mapping)
    recipe_file = sources.get("recipe")
    recipe, found = parse_recipe(
        config.get("recipe") or {}, YamlSource(recipe_file, "recipe") if recipe_file is not None else None
    )
    runtime = config.get("runtime") or {}
    backend = config.get("backend") or {}
    problems += _backend_problems(backend) + replay_problems(config)
    if model is None or deployment is None or machine is None or any(p.severity == "error" for p in problems):
        raise RefusedError(_once([*problems, *found]))
    exe_mode = str(runtime.get("exe_mode", ""))
    return Experiment(
        config,
        model,
        recipe,
        deployment,
        machine.for_mode(exe_mode),
        exe_mode,
        backend.get("draws", 256),
        backend.get("seed", 0),
        tuple(_once([*problems, *found])),
        sources,
    )


def prepare(experiment: Experiment) -> Prepared:
    """Load, trace, resolve and transform. What another grid point has done already is reused.

    Raises:
        RefusedError: with every problem of the recipe on this model, or every reason why the plan can't be placed.
    """
    from pipeline.full_size import full_size_problems
    from pipeline.picked_layers import picked_layer_problems
    from pipeline.preconditions import Places
    from pipeline.resolve import resolve

    MEMO.take_reused()
    full, workload = _model(experiment, "full")
    machine, measured = experiment.machine, None
    if replays(experiment.config):
        replay_key = fingerprint(experiment.model_key, experiment.machine_key)
        measured = MEMO.get(
            "profile laid over the model", replay_key, lambda: read_measured(experiment.config, machine, workload)
        )
        workload, machine = measured.workload, measured.machine
    key = fingerprint(experiment.model_key, experiment.machine_key, experiment.config["recipe"])
    places = Places(experiment.config, experiment.files)
    resolution = MEMO.get(
        "resolved recipe",
        key,
        lambda: resolve(experiment.recipe, full, workload, machine, exe_mode=experiment.exe_mode, places=places),
    )
    problems = raise_errors(_once([*experiment.problems, *full.problems, *resolution.problems]))
    tiny, tiny_workload = _model(experiment, "tiny")
    tiny_resolution = MEMO.get(
        "recipe resolved on the tiny model",
        key,
        lambda: resolve(
            experiment.recipe,
            tiny,
            tiny_workload,
            sizes=resolution.sizes,
            exe_mode=experiment.exe_mode,
            strategy=resolution.scopes.strategy or None,
        ),
    )
    raise_errors(tiny_resolution.problems)
    if experiment.transform == "source":
        raise_errors(picked_layer_problems(experiment.recipe, (full, resolution), (tiny, tiny_resolution)))
    problems += [p for p in tiny_resolution.problems if p.code == "not-in-tiny"]  # all else was told at full size
    realisation = _realise(experiment, tiny, tiny_resolution)
    if realisation is not None and realisation.source is not None:
        source = realisation.source
        plans = resolution.plan, tiny_resolution.plan
        copies = [(p.weight, p.max_size, p.offset) for p in resolution.plan.prefetch]
        full_key = fingerprint(experiment.model_key, source.after, copies)
        raise_errors(MEMO.get("diff at full size", full_key, lambda: full_size_problems(full, tiny, *plans, source)))
    reused = tuple(MEMO.take_reused())
    problems += measured.problems() if measured else []
    return Prepared(
        experiment,
        full,
        tiny,
        workload,
        resolution,
        tiny_resolution,
        realisation,
        tuple(problems),
        machine,
        measured,
        reused,
    )


def _realise(experiment: Experiment, tiny: "LoadedModel", resolution: "Resolution") -> "Realisation | None":
    from transforms.recording import record
    from transforms.registry import realise

    if experiment.transform == "wrap":
        return realise("wrap", tiny, resolution.plan)
    if interpreter_problems():
        return None
    recording = MEMO.get("recorded calls of a tiny decode step", experiment.model_key, lambda: record(tiny))
    return realise("source", tiny, resolution.plan, recording)


def _model(experiment: Experiment, size: Any) -> "tuple[LoadedModel, Workload]":
    from models.loading import load
    from models.trace import trace

    def make() -> "tuple[LoadedModel, Workload]":
        loaded = load(experiment.model, experiment.deployment, experiment.exe_mode, size)
        return loaded, trace(loaded)

    return MEMO.get(f"{size} model and its traced decode step", experiment.model_key, make)


def _backend_problems(backend: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for key in sorted(set(backend) - {"name", "draws", "seed"}):
        problems.append(
            Problem("error", "unknown-key", f"unknown key `{key}`", "Known: name, draws, seed.", f"backend.{key}")
        )
    draws, seed = backend.get("draws", 256), backend.get("seed", 0)
    if not isinstance(draws, int) or isinstance(draws, bool) or not 16 <= draws <= 100_000:
        message = f"`{draws}` is not a number of draws between 16 and 100000"
        problems.append(Problem("error", "bad-value", message, "256 is enough for a 10-90 % band.", "backend.draws"))
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        problems.append(Problem("error", "bad-value", f"`{seed}` is not a seed (0, 1, 2, ...)", "", "backend.seed"))
    return problems


def _once(problems: list[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))
