"""Composition: from overrides to the plain configuration of every grid point, before anything runs.

A recipe file can't select the groups beside it (Hydra reads a config's defaults only for its own package), so that
is done here: the recipe is composed first, and the model, deployment, hardware and runtime it names are selected
unless the command line says otherwise.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from models.problems import Problem, RefusedError, hint
from pipeline.compose_errors import hydra_problem, placed_default, without_here, yaml_problem
from pipeline.config_files import (
    CONF,
    check_groups,
    check_runtime,
    clashes,
    files_of,
    is_utf8,
    not_utf8,
    option_file,
    options,
)
from pipeline.overrides import GROUPS, UserOverride
from pipeline.transformers_choice import choice_problems, default_deployment, hydra_choice
from pipeline.yaml_source import YamlSource

MOST_POINTS = 10_000
_HOW = ("format", "trial", "sweep")
SELECTED = ("model", "deployment", "hardware", "runtime")  # by the recipe
_CHOICES: dict[str, tuple[Any, ...]] = {
    "format": ("text", "json"),
    "transform": ("source", "wrap"),
    "report.language": ("en", "zh"),
    "verify.compiles": (True, False, "auto"),
    "verify.numerics": (True, False, "auto"),
    "verify.graph": (True, False, "auto"),
    "trial.fresh": (True, False),
    "sweep.fail_fast": (True, False),
}
_LATER = {
    "npu": "measuring on a real NPU is not in this version",
    "command": "measuring by a user's own command is not in this version",
}


@dataclass(frozen=True)
class GridPoint:
    """One point of the grid: what Hydra gets, and what a user would type for it alone.

    Attributes:
        overrides: complete for Hydra, with the groups that the recipe selects.
        typed: the same as a user types it, for `run it again`.
        varying: key -> value of what differs between the points, in the order of the command line.
        choices: group -> option.
        config: the composed configuration, resolved, plain.
    """

    overrides: tuple[str, ...]
    typed: tuple[str, ...]
    varying: Mapping[str, str]
    choices: Mapping[str, str]
    config: Mapping[str, Any]

    @property
    def label(self) -> str:
        """`coefficient=0.5 only=[router]`; "" if the grid has one point."""
        return " ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in self.varying.items())

    def sources(self, folders: Sequence[Path] = (CONF,)) -> dict[str, Path]:
        """Group -> the YAML file that its option comes from."""
        return files_of(self.choices, folders)


def compose_grid(overrides: Sequence[UserOverride], sweep: bool, folders: Sequence[Path] = (CONF,)) -> list[GridPoint]:
    """Compose every grid point; arguments as in `compose_points`.

    Raises:
        RefusedError: with the problems of all points.
    """
    points, problems = compose_points(overrides, sweep, folders)
    if problems:
        raise RefusedError(problems)
    return points


def compose_points(
    overrides: Sequence[UserOverride], sweep: bool, folders: Sequence[Path] = (CONF,)
) -> tuple[list[GridPoint], list[Problem]]:
    """Compose every grid point, and go on after a problem.

    Args:
        overrides: parsed by `read_overrides`.
        sweep: `-m` was given; without it more than one value for a key is a problem.
        folders: config folders, the first one wins; `CONF` is one of them.

    Returns:
        The points whose parts can be read, so that their other problems can be found too, and the problems of all.
    """
    problems: list[Problem] = []
    if not sweep:
        for override in overrides:
            if override.is_sweep:
                fix = "Add -m to run one trial per value; a list is written [a,b]."
                message = f"`{override.typed}` has more than one value, and this is no sweep"
                problems.append(Problem("error", "sweep-without-m", message, fix, override.key))
    size = math.prod(len(o.values) or 1 for o in overrides)
    if size > MOST_POINTS:
        fix = "Sweep fewer values, or split the sweep."
        problems.append(Problem("error", "grid-too-large", f"{size:,} trials, and {MOST_POINTS:,} are the most", fix))
    swept = [o for o in overrides if o.is_sweep and o.key.partition(".")[0] in _HOW]
    for override in swept if sweep else ():
        message = f"`{override.key}` does not change a trial's result, so it can't be swept"
        problems.append(Problem("error", "not-sweepable", message, "Give one value.", override.key))
    if problems:
        return [], problems
    points: list[GridPoint] = []
    with hydra(folders):
        for combination in _combinations(overrides):
            point, found = _compose_point(combination, folders)
            problems += [p for p in found if p not in problems]
            if point is not None:
                points.append(point)
    return points, problems


@contextmanager
def hydra(folders: Sequence[Path] = (CONF,)) -> Iterator[Any]:
    """Hydra, initialised on `CONF`; yields the object that composes and runs. The search path is in the overrides."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    import pipeline.task  # noqa: F401  registers the resolver

    with initialize_config_dir(config_dir=str(CONF), job_name="npu-recipes", version_base="1.3"):
        yield GlobalHydra.instance().hydra


def search_path_overrides(folders: Sequence[Path]) -> list[str]:
    """Hydra's override that adds the folders beside `CONF`; empty if there are none."""
    from pipeline.overrides import quote

    extra = [quote(f"file://{folder.resolve()}") for folder in folders if folder != CONF]
    return [f"hydra.searchpath=[{','.join(extra)}]"] if extra else []


def recompose(overrides: Sequence[str], folders: Sequence[Path]) -> tuple[dict[str, Any], Problem | None]:
    """Compose recorded overrides, which select their groups already; call it inside `hydra()`.

    Returns:
        The plain configuration, or ({}, what is wrong).
    """
    return _compose([*overrides, *search_path_overrides(folders)])


@dataclass(frozen=True)
class _Chosen:
    """An override with one of its values."""

    override: UserOverride
    value: str | None

    @property
    def typed(self) -> str:
        if not self.override.is_sweep:
            return self.override.typed
        return f"{self.override.key}={self.value}"


def _combinations(overrides: Sequence[UserOverride]) -> Iterator[tuple[_Chosen, ...]]:
    """All grid points, the last key varying fastest."""
    per_key = [[_Chosen(o, v) for v in o.values] or [_Chosen(o, None)] for o in overrides]
    yield from itertools.product(*per_key)


def _compose_point(combination: Sequence[_Chosen], folders: Sequence[Path]) -> tuple[GridPoint | None, list[Problem]]:
    chosen = {c.override.key: c.value or "" for c in combination if c.override.key in GROUPS}
    choices, problems = _choose(chosen, folders)
    if problems:
        return None, problems
    values = [c for c in combination if c.override.key not in GROUPS]
    texts = [text for group, name in choices.items() for text in hydra_choice(group, name)]
    # Deletions come first, so that `~x` together with `x={...}` replaces x whatever their order.
    values = sorted(values, key=lambda c: c.override.sign != "~")
    texts += [c.override.hydra(c.value) for c in values] + search_path_overrides(folders)
    config, problem = _compose(texts)
    if problem is not None:
        unreadable = [not_utf8(path) for path in files_of(choices, folders).values() if not is_utf8(path)]
        return None, unreadable or _missing_deletions(combination, choices, folders) or [
            placed_default(problem, folders)
        ]
    problems = check_groups(config, files_of(choices, folders))
    if problems:
        return None, problems
    problems = check_runtime(config, files_of(choices, folders)) + check_values(config)
    typed = tuple(c.typed for c in combination)
    varying = {c.override.key: c.value or "" for c in combination if c.override.is_sweep}
    return GridPoint(tuple(texts), typed, varying, choices, config), problems


def _choose(chosen: Mapping[str, str], folders: Sequence[Path]) -> tuple[dict[str, str], list[Problem]]:
    """Group -> option, with the recipe's selection filled in."""
    problems: list[Problem] = []
    for group, name in chosen.items():
        if group == "backend" and name in _LATER:
            fix = "Use backend=simulator (modelled)."
            problems.append(Problem("error", "backend-not-available", f"backend={name}: {_LATER[name]}", fix, group))
        elif option_file(group, name, folders) is None:
            problems.append(unknown_option(group, name, folders))
    if "recipe" not in chosen:
        known = ", ".join(options("recipe", folders)) or "none"
        fix = f"Add recipe=NAME. Known recipes: {known}."
        problems.append(Problem("error", "no-recipe", "no recipe was chosen", fix, "recipe"))
    elif option_file("recipe", chosen["recipe"], folders) is not None:
        selection, problem = _selection(chosen["recipe"], tuple(folders))
        if problem is not None:
            return {}, [*problems, problem]
        names = default_deployment(chosen) | {group: name for group, name in selection if name}
        if "model" in chosen and names.get("model") not in (None, chosen["model"]):
            message = f"recipe {chosen['recipe']} is for model {names['model']}, not {chosen['model']}"
            fix = "Leave model= away, or choose a recipe of that model."
            problems.append(Problem("error", "recipe-for-another-model", message, fix, "model"))
        for group in SELECTED:
            if group not in chosen:
                problems += _check_selected(group, names.get(group), chosen["recipe"], folders)
        chosen = {**{g: str(n) for g, n in names.items() if n}, **chosen}
    return {"backend": "simulator", **chosen}, problems + clashes(chosen, folders) + choice_problems(chosen)


def _check_selected(group: str, name: Any, recipe: str, folders: Sequence[Path]) -> list[Problem]:
    if not name:
        message, fix = f"recipe {recipe} names no {group}", f"Add {group}=NAME, or `{group}:` to the recipe."
        file = option_file("recipe", recipe, folders)
        if group == "model":
            message = f"recipe {recipe} is for any model, and none was chosen"
            fix = "Add model=NAME, e.g. model=qwen3 or model=hf/llama."
        if entry := without_here(file, "recipe") if file else None:
            fix += f" To inherit, write `{entry[0]}@_here_` in its defaults: without @_here_ it lands below a key."
            return [Problem("error", "no-" + group, message, fix, group, str(file), entry[1])]
        return [Problem("error", "no-" + group, message, fix, group)]
    if option_file(group, str(name), folders) is None:
        problem = unknown_option(group, str(name), folders)
        file = option_file("recipe", recipe, folders)
        assert file is not None
        place, line = YamlSource(file).place(f"recipe.{group}")
        return [replace(problem, key=f"recipe.{group}", file=place or str(file), line=line)]
    return []


def unknown_option(group: str, name: str, folders: Sequence[Path]) -> Problem:
    """The problem of a choice that no file has, with the nearest name."""
    known = list(options(group, folders))
    message = f"there is no {group} `{name}`.{hint(name, known)}"
    return Problem("error", f"unknown-{group}", message, f"Known: {', '.join(known) or 'none'}.", group)


@cache
def _selection(recipe: str, folders: tuple[Path, ...]) -> tuple[tuple[tuple[str, Any], ...], Problem | None]:
    """What the recipe (with what it inherits) says about the groups beside it."""
    config, problem = _compose([f"recipe={recipe}", *search_path_overrides(folders)])
    if problem is not None:
        path = option_file("recipe", recipe, folders)
        return (), not_utf8(path) if path and not is_utf8(path) else placed_default(problem, folders)
    data = config.get("recipe")
    if not isinstance(data, Mapping):
        file = str(option_file("recipe", recipe, folders))
        return (), Problem("error", "not-a-mapping", "the file is not a mapping of keys", "", "recipe", file)
    return tuple((group, data.get(group)) for group in SELECTED), None


def _compose(overrides: Sequence[str]) -> tuple[dict[str, Any], Problem | None]:
    """The configuration without Hydra's own part, or what is wrong with it."""
    import yaml
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = compose("config", list(overrides))
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            fix = " ".join(f"Add {key}=VALUE." for key in missing)
            return {}, Problem("error", "missing-value", f"{', '.join(missing)} must be given", fix, missing[0])
        plain = OmegaConf.to_container(config, resolve=True)
    except yaml.YAMLError as e:
        return {}, yaml_problem(e)
    except (HydraException, OmegaConfBaseException) as e:
        return {}, hydra_problem(e)
    except UnicodeDecodeError as e:
        # Which file it is, is found by those who know the files.
        return {}, Problem("error", "not-utf8", f"a config file is not UTF-8 text ({e.reason})", "Save it as UTF-8.")
    except RecursionError:
        return {}, Problem("error", "not-yaml", "the configuration is nested too deeply", "Write it flatter.")
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}, None


def _missing_deletions(
    combination: Sequence[_Chosen], choices: Mapping[str, str], folders: Sequence[Path]
) -> list[Problem]:
    """Deletions of what is not there, all of them."""
    chosen = [text for group, name in choices.items() for text in hydra_choice(group, name)]
    base, _ = _compose([*chosen, *search_path_overrides(folders)])
    problems = []
    for override in (c.override for c in combination if c.override.sign == "~"):
        place: Any = base
        for part in override.key.split("."):
            if not isinstance(place, Mapping) or part not in place:
                known = list(map(str, place)) if isinstance(place, Mapping) else []
                message = f"there is no `{override.key}` to delete.{hint(part, known)}"
                fix = f"There are: {', '.join(known)}." if known else ""
                problems.append(Problem("error", "unknown-key", message, fix, override.key))
                break
            place = place[part]
    return problems


def check_values(config: Mapping[str, Any]) -> list[Problem]:
    """Values of the top-level keys that are no groups."""
    problems = []
    for key, allowed in _CHOICES.items():
        top, _, leaf = key.partition(".")
        place = config.get(top)
        if leaf and not isinstance(place, Mapping):
            message = f"`{top}` must be a mapping, it is `{place}`"
            problem = Problem("error", "not-a-mapping", message, f"Set {top}.KEY=VALUE instead.", top)
            problems += [problem] if problem not in problems else []
            continue
        value = place.get(leaf) if leaf and isinstance(place, Mapping) else place
        if not any(value is a or (isinstance(a, str) and value == a) for a in allowed):
            texts = [str(a).lower() if isinstance(a, bool) else str(a) for a in allowed]
            message = f"`{value}` is not one of {', '.join(texts)}.{hint(str(value), texts)}"
            problems.append(Problem("error", "bad-value", message, "", key))
    timeout = config["trial"].get("timeout") if isinstance(config.get("trial"), Mapping) else None
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0):
        problems.append(Problem("error", "bad-value", f"`{timeout}` is not a time > 0 s", "", "trial.timeout"))
    if not isinstance(config.get("output"), str) or not config["output"]:
        problems.append(Problem("error", "bad-value", "`output` must be a directory", "", "output"))
    return problems
