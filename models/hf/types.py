"""Which model types the installed transformers knows, and which of them are causal language models."""

from functools import cache
from typing import Any

from models.problems import Problem, nearest

GROUP = "hf"  # `model=hf/<model_type>`, and `model=hf` for a checkpoint folder
_LIST = "`npu-recipes list hf` shows the causal language models."


def is_transformers(architecture: str) -> bool:
    """Whether an architecture's name says that transformers has the model: `hf` or `hf/<model_type>`."""
    return architecture.partition("/")[0] == GROUP


@cache
def causal_lm_types() -> tuple[str, ...]:
    """The model types that transformers maps to a causal language model, sorted."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))


@cache
def model_types() -> tuple[str, ...]:
    """All model types that transformers has a configuration of, sorted."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return tuple(sorted(CONFIG_MAPPING_NAMES))


def class_name(model_type: str) -> str:
    """Name of the causal language model's class, e.g. `LlamaForCausalLM`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])


def config_class(model_type: str) -> Any:
    """The configuration class of a model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]


def type_problem(model_type: str, key: str = "model", file: str | None = None) -> Problem | None:
    """Why a model type is no causal language model of the installed transformers; None if it is one."""
    import transformers

    known = causal_lm_types()
    if model_type in known:
        return None
    release = f"transformers {transformers.__version__}"
    fix = _suggestion(model_type, known)
    if model_type in model_types():
        message = f"{release} has no causal language model of type {model_type!r}"
        related = [name for name in (f"{model_type}_text", f"{model_type}-decoder") if name in known]
        fix = f"Its text model is {related[0]}." if related else _LIST
        return Problem("error", "not-a-causal-lm", message, fix, key, file)
    return Problem("error", "unknown-model-type", f"{release} has no model type {model_type!r}", fix, key, file)


def _suggestion(model_type: str, known: tuple[str, ...]) -> str:
    near = nearest(model_type, known)
    if near is None:  # a known type with something behind it
        near = max((name for name in known if model_type.startswith(name)), key=len, default=None)
    return f"Did you mean {near}?" if near else _LIST
