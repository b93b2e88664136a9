"""From a configuration of transformers to a module that can be run."""

import sys
from types import ModuleType
from typing import Any

import torch
from torch import nn

from models.hf.families import DECODER, FLOAT_PARAMETERS
from models.hf.quiet import quiet
from models.hf.types import class_name
from models.problems import Problem, RefusedError

_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")


def build(config: Any, model_type: str, size: str) -> nn.Module:
    """The causal language model of a configuration, with eager attention, in eval mode.

    Args:
        config: of `full_config` or `tiny_config`; it is changed (dtype, attention).
        model_type: as the user gave it.
        size: `full` in bf16 on `meta`, or `tiny` in float32 on the CPU with seeded weights.

    Raises:
        RefusedError: the model can't be built: a package is missing, or its values don't fit together.
    """
    import transformers

    full = size == "full"
    dtype = torch.bfloat16 if full else torch.float32
    try:
        with quiet(), torch.random.fork_rng(devices=[]), torch.device("meta" if full else "cpu"):
            torch.manual_seed(0)
            if model_type in DECODER:
                cls = getattr(transformers, class_name(model_type))
                module = cls._from_config(config, dtype=dtype, attn_implementation="eager")
            else:
                auto = transformers.AutoModelForCausalLM
                module = auto.from_config(config, dtype=dtype, attn_implementation="eager")
    except ImportError as error:
        message = f"{model_type} needs a package that is not installed: {_first(error)}"
        raise RefusedError([Problem("error", "missing-package", message, "Install it.", "model")]) from error
    except Exception as error:  # whatever a modeling file raises
        message = f"{class_name(model_type)} can't be built: {type(error).__name__}: {_first(error)}"
        key = "model.config" if full else "model.tiny"
        raise RefusedError([Problem("error", "cannot-build", message, f"Change {key}.FIELD.", key)]) from error
    module = module.eval().requires_grad_(False)
    if model_type in FLOAT_PARAMETERS:
        module = module.to(dtype)
    if full:
        return module.to("meta")  # some parameters are made on the CPU whatever the default device is
    _spread(module)
    return module


def file_module(layer: nn.Module) -> ModuleType:
    """The Python module whose file holds a layer's class."""
    return sys.modules[type(layer).__module__]


def declared_positions(module: nn.Module) -> int | None:
    """Tokens of context that the configuration is meant for."""
    config: Any = module.config
    values = config.get_text_config().to_dict()
    return next((values[name] for name in _POSITIONS if isinstance(values.get(name), int)), None)


def positions(module: nn.Module) -> int:
    """Tokens of context for which the model has a table (embeddings, masks); a large number if it computes them."""
    most = declared_positions(module)
    if most is None:
        return sys.maxsize
    inputs = module.get_input_embeddings()  # type: ignore[operator]
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding) and m is not inputs]
    sides = [side for buffer in module.buffers() if buffer.ndim > 1 for side in buffer.shape]
    # Some tables have a few rows more, for padding.
    return most if any(most <= size <= most + 4 for size in (*tables, *sides)) else sys.maxsize


def _spread(module: nn.Module) -> None:
    """Seeded noise on vectors, so that no norm is one and no bias is zero; constant matrices become random."""
    generator = torch.Generator().manual_seed(0)
    for _, weight in sorted(module.named_parameters()):
        if not weight.is_floating_point() or not weight.numel():
            continue
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim < 2:
            weight.data += 0.01 * noise
        elif bool((weight == weight.flatten()[0]).all()):
            weight.data += 0.02 * noise


def _first(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
