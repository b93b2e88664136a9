"""What SuperKernel needs of the execution mode, the machine and the model, as data, and the checks.

Each violation names the key that says otherwise, with the file and line that hold it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from models.problems import Problem
from pipeline.recipe import Recipe
from pipeline.reporter import Reporter
from pipeline.yaml_source import YamlSource


@dataclass(frozen=True)
class Precondition:
    """What one value of the configuration means for SuperKernel.

    Attributes:
        key: the configuration key.
        value: its value.
        status: `met`; `by_opt_in`: only if `recipe.superkernel.allow` names `allowance`; `refused`.
        why: the reason where it is not simply met.
        fix: what to do.
        allowance: what to write into `allow`.
        code: of the problem.
    """

    key: str
    value: str
    status: Literal["met", "by_opt_in", "refused"]
    why: str = ""
    fix: str = ""
    allowance: str = ""
    code: str = ""


_GRAPH = "Choose runtime=ge_graph, or set recipe.superkernel.enabled=false."
_A3 = "Choose hardware=atlas_a3, or set recipe.superkernel.enabled=false."

PRECONDITIONS: tuple[Precondition, ...] = (
    Precondition("runtime.exe_mode", "ge_graph", "met"),
    Precondition(
        "runtime.exe_mode",
        "npugraph_ex",
        "by_opt_in",
        "SuperKernel is documented for ge_graph; npugraph_ex has it in newer versions only",
        "Choose runtime=ge_graph, or add npugraph_ex to recipe.superkernel.allow.",
        "npugraph_ex",
        "superkernel-mode",
    ),
    Precondition(
        "runtime.exe_mode",
        "eager",
        "refused",
        "SuperKernel compiles the kernels of a static graph into one; in eager mode there is no graph",
        _GRAPH,
        code="superkernel-mode",
    ),
    Precondition(
        "runtime.exe_mode",
        "aclgraph",
        "refused",
        "aclgraph captures launches one by one and has no SuperKernel",
        _GRAPH,
        code="superkernel-mode",
    ),
    Precondition("hardware.generation", "a3", "met"),
    Precondition(
        "hardware.generation",
        "a2",
        "by_opt_in",
        "SuperKernel is documented for Atlas A3; newer documents of torchair list A2 too",
        f"{_A3[:-1]}, or add a2 to recipe.superkernel.allow.",
        "a2",
        "superkernel-generation",
    ),
    Precondition(
        "hardware.generation",
        "950",
        "refused",
        "no public document says that the Atlas 950 has SuperKernel",
        _A3,
        code="superkernel-generation",
    ),
)


class Places:
    """File and line of the keys of a composed configuration.

    Args:
        config: composed, plain.
        files: group -> its YAML file.
    """

    def __init__(self, config: Mapping[str, Any], files: Mapping[str, Path]) -> None:
        self._config, self._files = config, files

    def reporter(self, key: str) -> Reporter:
        """An empty list of problems for the group that holds a key, e.g. `runtime.exe_mode`."""
        group = key.partition(".")[0]
        file = self._files.get(group)
        return Reporter(YamlSource(file, group) if file is not None else None, self._config.get(group))


def check_preconditions(
    recipe: Recipe, exe_mode: str, generation: str | None, model: Any = None, places: Places | None = None
) -> list[Problem]:
    """What refuses SuperKernel here; empty if the recipe does not ask for it.

    Args:
        recipe: the recipe.
        exe_mode: `runtime.exe_mode`.
        generation: of the machine; None if there is no machine to check against.
        model: the module, to see whether its KV cache is static.
        places: for file and line.
    """
    section = recipe.superkernel
    if not section.enabled:
        return []
    problems: list[Problem] = []
    for key, value in (("runtime.exe_mode", exe_mode), ("hardware.generation", generation)):
        for condition in PRECONDITIONS:
            if (condition.key, condition.value) != (key, value) or condition.status == "met":
                continue
            if condition.status == "by_opt_in" and condition.allowance in section.allow:
                continue
            report = places.reporter(key) if places is not None else Reporter(None)
            report.error(condition.code, key, f"SuperKernel with {key}={value}: {condition.why}", condition.fix)
            problems += report.problems
    report = recipe.reporter()
    if _dynamic_cache(model):
        from models.hf.fused_view import is_transformers

        report.error(
            "dynamic-kv-cache",
            "recipe.superkernel.enabled",
            f"{type(model).__name__} grows its KV cache while it decodes; a scope needs a static graph with a cache "
            "that was allocated before",
            "Add model.cache=static." if is_transformers(model) else "Use a model with a static (paged) KV cache.",
        )
    return problems + report.problems


def waived(allow: Iterable[str], exe_mode: str, generation: str) -> tuple[Precondition, ...]:
    """Preconditions that hold only because the recipe's `allow` names them; reports say so."""
    values = {"runtime.exe_mode": exe_mode, "hardware.generation": generation}
    named = set(allow)
    return tuple(
        c for c in PRECONDITIONS if c.status == "by_opt_in" and values.get(c.key) == c.value and c.allowance in named
    )


def _dynamic_cache(model: Any) -> bool:
    """Whether the model says itself that its cache is not allocated before the step."""
    config = getattr(model, "config", None)
    if config is None or hasattr(config, "new_caches"):
        return False
    return getattr(config, "cache_implementation", None) != "static" and bool(getattr(config, "use_cache", False))
