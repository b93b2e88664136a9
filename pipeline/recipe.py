"""Recipes: which weights to prefetch after what, as written; checked key by key, without any model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from models.paths import Pattern
from models.problems import Problem, did_you_mean
from pipeline.recipe_fields import (
    check_keys,
    read_coefficient,
    read_dependency,
    read_path,
    read_size,
    read_switch,
    read_text,
)
from pipeline.reporter import Reporter
from pipeline.superkernel_section import SuperKernelSection, parse_superkernel
from pipeline.yaml_source import YamlSource
from transforms.plan import Port

RECIPE_KEYS = ("name", "model", "deployment", "hardware", "runtime", "prefetch", "superkernel")
PREFETCH_KEYS = ("enabled", "coefficient", "only", "targets")
TARGET_KEYS = ("weight", "dependency", "coefficient", "max_size", "offset", "in")
DEFAULT_COEFFICIENT = Decimal("0.5")
EXE_MODES = ("eager", "ge_graph", "npugraph_ex")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_CLASS_METHOD = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\Z")


@dataclass(frozen=True)
class Target:
    """One line of a recipe: a weight and what to wait for, for all layers.

    Attributes:
        name: key of the target in the recipe.
        weight: path of a module or parameter.
        dependency: path of a module.
        port: whether its `output` or its `input` is waited for.
        coefficient: share of the weight, 0 < c <= 1, exact; None: the recipe's.
        max_size: bytes; beats the coefficient. None: by the coefficient.
        offset: first byte.
        method: the key `in`: `Class.method`, for trees that can't run.
    """

    name: str
    weight: Pattern
    dependency: Pattern
    port: Port = "output"
    coefficient: Decimal | None = None
    max_size: int | None = None
    offset: int = 0
    method: str | None = None

    @property
    def key(self) -> str:
        return f"recipe.prefetch.targets.{self.name}"


@dataclass(frozen=True)
class PrefetchSection:
    """`recipe.prefetch`. `only`: names of the targets in force, None for all."""

    enabled: bool = True
    coefficient: Decimal = DEFAULT_COEFFICIENT
    only: tuple[str, ...] | None = None
    targets: tuple[Target, ...] = ()

    @property
    def active(self) -> tuple[Target, ...]:
        """The targets in force, in recipe order."""
        if not self.enabled:
            return ()
        return tuple(t for t in self.targets if self.only is None or t.name in self.only)


@dataclass(frozen=True)
class Recipe:
    """A recipe as written. `source` and `written` are where and what it was read from, for messages."""

    name: str
    model: str
    deployment: str | None = None
    hardware: str | None = None
    runtime: str | None = None
    prefetch: PrefetchSection = field(default_factory=PrefetchSection)
    superkernel: SuperKernelSection = field(default_factory=SuperKernelSection)
    source: YamlSource | None = field(default=None, compare=False, repr=False)
    written: Any = field(default=None, compare=False, repr=False)

    def reporter(self) -> Reporter:
        """An empty list of problems that knows where this recipe's keys stand."""
        return Reporter(self.source, self.written)

    @property
    def generic(self) -> bool:
        """Whether it is for any model: it names none, and its paths are roles."""
        return not self.model


def parse_recipe(data: Mapping[str, Any], source: YamlSource | None = None) -> tuple[Recipe, list[Problem]]:
    """Read the composed `recipe` mapping.

    Args:
        data: plain mappings, lists and scalars, as composition gives them.
        source: the recipe's file, for line numbers.

    Returns:
        The recipe and all problems. Targets with an error are left out of it, so that the rest can still be resolved.
    """
    report = Reporter(source, data)
    if not isinstance(data, Mapping):
        report.error("bad-type", "recipe", f"a recipe is a mapping, not {data!r}")
        return Recipe("", ""), report.problems
    check_keys(report, "recipe", data, RECIPE_KEYS)
    _check_name(report, data.get("name"))
    model = read_text(report, data, "model")
    recipe = Recipe(
        name=read_text(report, data, "name") or "",
        model=model or "",
        deployment=read_text(report, data, "deployment"),
        hardware=read_text(report, data, "hardware"),
        runtime=read_text(report, data, "runtime"),
        prefetch=_parse_prefetch(report, data.get("prefetch")),
        superkernel=parse_superkernel(report, data.get("superkernel")),
        source=source,
        written=data,
    )
    if data.get("model") is None:
        _check_generic(report, recipe)
    return recipe, report.problems


def _check_generic(report: Reporter, recipe: Recipe) -> None:
    """A recipe that names no model can name its modules by role only."""
    paths = [p for t in recipe.prefetch.targets for p in (t.weight, t.dependency)]
    paths += [p for s in recipe.superkernel.scopes for p in (s.first, s.last)]
    path = next((p for p in paths if p.role is None), None)
    if path is not None or not (recipe.prefetch.targets or recipe.superkernel.enabled):
        why = f", and `{path.text}` names a module of one" if path is not None else ""
        report.error(
            "missing-key",
            "recipe.model",
            f"the recipe has no `model`{why}",
            "Add `model:` to the recipe, or name roles, like layers.{i}@mlp.up (docs/roles.md).",
        )


def check_model(recipe: Recipe, model: str) -> list[Problem]:
    """Refuse a recipe that was written for another model."""
    report = recipe.reporter()
    if recipe.model and recipe.model != model:
        report.error(
            "recipe-for-another-model",
            "recipe.model",
            f"recipe `{recipe.name}` is for model `{recipe.model}`, not for `{model}`",
            f"Leave out `model=` (the recipe selects its own), or choose a recipe for `{model}`.",
        )
    return report.problems


def check_coefficient(recipe: Recipe) -> list[Problem]:
    """Warn where `recipe.prefetch.coefficient` of the command line does not reach: targets with their own one."""
    report = recipe.reporter()
    key = "recipe.prefetch.coefficient"
    if not report.overridden(key):
        return report.problems
    held = [t for t in recipe.prefetch.active if t.coefficient is not None and t.max_size is None]
    held = [t for t in held if not report.overridden(f"{t.key}.coefficient")]
    if held:
        own = "a coefficient of its own" if len(held) == 1 else "coefficients of their own"
        names = ", ".join(f"`{t.name}` ({t.coefficient})" for t in held)
        report.warn(
            "coefficient-not-reached",
            key,
            f"the coefficient of the command line does not move {names}, with {own} in the recipe",
            "To move them along, add " + " ".join(f"'{t.key}.coefficient=${{{key}}}'" for t in held) + ".",
        )
    return report.problems


def check_mode(recipe: Recipe, exe_mode: str, multi_stream: int) -> list[Problem]:
    """What the execution mode and the deployment's multi-stream switch allow of prefetch.

    What SuperKernel needs of them is in `pipeline.preconditions`.

    Args:
        recipe: the recipe.
        exe_mode: `runtime.exe_mode`.
        multi_stream: `deployment.multi_stream`; 0 means that the graph has one stream.
    """
    report = Reporter(None)
    active = bool(recipe.prefetch.active)
    if exe_mode == "aclgraph" and active:
        report.error(
            "aclgraph",
            "runtime.exe_mode",
            "aclgraph does not support prefetch",
            "Choose runtime=ge_graph or runtime=npugraph_ex, or set recipe.prefetch.enabled=false.",
        )
    elif exe_mode not in (*EXE_MODES, "aclgraph"):
        report.error(
            "unknown-mode",
            "runtime.exe_mode",
            f"unknown execution mode `{exe_mode}`",
            did_you_mean(exe_mode, EXE_MODES),
        )
    elif active and exe_mode == "eager":
        report.warn(
            "eager-prefetch",
            "runtime.exe_mode",
            "prefetch in eager mode is for testing only: the host cannot issue calls fast enough to gain; the forecast "
            "keeps a graph's baseline (no host time per kernel), so its percentages are not those of an eager step",
            "Choose runtime=ge_graph or runtime=npugraph_ex for performance.",
        )
    elif active and exe_mode != "aclgraph" and multi_stream == 0:
        report.error(
            "multi-stream-off",
            "deployment.multi_stream",
            f"prefetch in {exe_mode} needs a second stream, but deployment.multi_stream is 0",
            "Set deployment.multi_stream=1 (or 2), or recipe.prefetch.enabled=false.",
        )
    return report.problems


def _parse_prefetch(report: Reporter, data: Any) -> PrefetchSection:
    key = "recipe.prefetch"
    if data is None:
        return PrefetchSection(enabled=False)
    if not isinstance(data, Mapping):
        report.error("bad-type", key, f"`{key}` is a mapping of {', '.join(PREFETCH_KEYS)}, not {data!r}")
        return PrefetchSection(enabled=False)
    check_keys(report, key, data, PREFETCH_KEYS)
    enabled = read_switch(report, f"{key}.enabled", data.get("enabled", True))
    coefficient = read_coefficient(report, f"{key}.coefficient", data.get("coefficient"))
    names, targets = _parse_targets(report, f"{key}.targets", data.get("targets"), enabled)
    only = _parse_only(report, f"{key}.only", data.get("only"), names)
    return PrefetchSection(enabled, coefficient or DEFAULT_COEFFICIENT, only, targets)


def _parse_targets(report: Reporter, key: str, data: Any, enabled: bool) -> tuple[list[str], tuple[Target, ...]]:
    """All names, those with errors too (so that `only` may name them), and the targets that could be read."""
    if data is not None and not isinstance(data, Mapping):
        report.error(
            "bad-type",
            key,
            f"`targets` is a mapping from names to targets, not {data!r}",
            "Give each target a name: `targets: {router: {weight: ..., dependency: ...}}`.",
        )
        return [], ()
    if not data:
        if enabled:
            report.error(
                "no-targets",
                key,
                "prefetch is enabled, but the recipe has no target",
                "Add a target, e.g. +recipe.prefetch.targets.NAME={weight: ..., dependency: ...}, "
                "or set recipe.prefetch.enabled=false.",
            )
        return [], ()
    parsed = [_parse_target(report, f"{key}.{name}", name, value) for name, value in data.items()]
    return [str(name) for name in data], tuple(t for t in parsed if t is not None)


def _parse_target(report: Reporter, key: str, name: Any, data: Any) -> Target | None:
    before = _errors(report)
    if not isinstance(name, str) or not _NAME.match(name):
        report.error(
            "bad-name",
            key,
            f"`{name}` can't be a target's name",
            "Use letters, digits and underscores, so that the command line can address it.",
        )
    if not isinstance(data, Mapping):
        report.error("bad-type", key, f"a target is a mapping of {', '.join(TARGET_KEYS)}, not {data!r}")
        return None
    check_keys(report, key, data, TARGET_KEYS)
    weight = read_path(report, f"{key}.weight", data.get("weight"))
    dependency, port = read_dependency(report, f"{key}.dependency", data.get("dependency"))
    coefficient = read_coefficient(report, f"{key}.coefficient", data.get("coefficient"))
    max_size = read_size(report, f"{key}.max_size", data.get("max_size"), minimum=1)
    offset = read_size(report, f"{key}.offset", data.get("offset"), minimum=0)
    method = data.get("in")
    if method is not None and not (isinstance(method, str) and _CLASS_METHOD.match(method)):
        report.error("bad-type", f"{key}.in", f"`in` is Class.method, not {method!r}")
    if _errors(report) > before or weight is None or dependency is None:
        return None
    return Target(str(name), weight, dependency, port, coefficient, max_size, offset or 0, method)


def _parse_only(report: Reporter, key: str, data: Any, names: list[str]) -> tuple[str, ...] | None:
    if data is None:
        return None
    wanted = [data] if isinstance(data, str) else data
    if not isinstance(wanted, list | tuple) or not all(isinstance(n, str) for n in wanted):
        report.error(
            "bad-type",
            key,
            f"`only` is a list of target names, not {data!r}",
            "Write recipe.prefetch.only=[router], or null for all targets.",
        )
        return None
    if not wanted:
        report.error(
            "no-targets",
            key,
            "`only` is empty: no target is left",
            "Name at least one target, write null for all, or set recipe.prefetch.enabled=false.",
        )
    for name in dict.fromkeys(wanted):
        if name not in names:
            report.error(
                "unknown-target",
                key,
                f"`only` names `{name}`, which is no target of this recipe",
                did_you_mean(name, names),
            )
    return tuple(dict.fromkeys(wanted))


def _check_name(report: Reporter, name: Any) -> None:
    """Reports and sweeps name a recipe by `name`, the command line by its file: two names are one too many."""
    if report.source is None or not name or report.overridden("recipe.name"):
        return
    path = report.source.path.absolute().with_suffix("")
    below = [path.relative_to(folder).as_posix() for folder in path.parents if folder.name == report.source.prefix]
    if below and name not in below:
        message = f"the recipe calls itself `{name}`, and its file is `recipe={below[0]}`"
        report.warn("name-is-not-path", "recipe.name", message, f"Write `name: {below[0]}`.")


def _errors(report: Reporter) -> int:
    return sum(p.severity == "error" for p in report.problems)
