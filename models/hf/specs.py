"""What a model's YAML says about a model of transformers, read and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.deployment import PARALLEL_SIZES, Deployment
from models.hf.configs import full_config, tiny_config
from models.hf.folder import read_folder
from models.hf.types import GROUP, type_problem
from models.problems import Problem, RefusedError


@dataclass(frozen=True)
class Configs:
    """Both configurations of a model.

    Attributes:
        model_type: one of `causal_lm_types()`.
        full, tiny: configurations of transformers.
        problems: warnings.
    """

    model_type: str
    full: Any
    tiny: Any
    problems: tuple[Problem, ...] = field(default=())


def read_configs(values: Mapping[str, Any], file: str | None = None) -> Configs:
    """The configurations of a model whose architecture is `hf` or `hf/<model_type>`.

    Args:
        values: `architecture`, `config`, `tiny` and `path` as in `ModelSpec`.
        file: the YAML file that they come from.

    Raises:
        RefusedError: with the problems of the type, the folder, or the fields.
    """
    model_type, path = str(values["architecture"]).partition("/")[2], values.get("path")
    stored: dict[str, Any] | None = None
    if path is not None:
        found, stored = read_folder(path)
        if model_type not in ("", found):
            message = f"{path} holds a model of type {found}, not {model_type}"
            fix = f"Write model={GROUP} or model={GROUP}/{found}."
            raise RefusedError([Problem("error", "another-model-type", message, fix, "model.path", file)])
        model_type = found
    if not model_type:
        message = f"model={GROUP} needs a checkpoint folder"
        fix = f"Add model.path=DIR, or write model={GROUP}/<model_type>, e.g. model={GROUP}/llama."
        raise RefusedError([Problem("error", "no-checkpoint", message, fix, "model.path", file)])
    problem = type_problem(model_type, file=file)
    if problem is not None:
        raise RefusedError([problem])
    full = full_config(model_type, values.get("config") or {}, stored)
    return Configs(model_type, full, tiny_config(full, values.get("tiny") or {}), _warnings(stored))


def deployment_problems(served: Deployment) -> list[Problem]:
    """Why a transformers model can't be served like this: it is one die that holds the whole model in bf16."""
    causes = [
        f"{name} {getattr(served, name)}" for name in (*PARALLEL_SIZES, "world_size") if getattr(served, name) > 1
    ]
    if served.role != "all":
        causes.append(f"role {served.role}")
    if served.quantised:
        causes.append(f"quant {served.quant}")
    if not causes:
        return []
    message = f"a transformers model runs whole, on one die, in bf16, and {served.name} says {', '.join(causes)}"
    fix = "Use deployment=unsharded; its batch_size, context_length, next_n and multi_stream can be changed."
    return [Problem("error", "sharded-transformers-model", message, fix, "deployment")]


def _warnings(stored: Mapping[str, Any] | None) -> tuple[Problem, ...]:
    method = (stored or {}).get("quantization_config")
    if not method:
        return ()
    kind = method.get("quant_method", "") if isinstance(method, Mapping) else ""
    message = f"the checkpoint is quantised ({kind or 'quantization_config'}); sizes are those of bf16 weights"
    fix = "For int8 sizes use a model of ours with a w8a8 deployment, where there is one."
    return (Problem("warning", "quantisation-ignored", message, fix, "model.path"),)
