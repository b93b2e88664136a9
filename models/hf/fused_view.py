"""Runs a transformers model as the fused operators of the NPU, for the time of a trace.

What the library lets us register (attention) is registered, what it does not is replaced on the instances of this model
or in the modules that hold its classes; all of it is put back at the end, whatever happens in between.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import nn

from models.hf.fused_attention import absorbed_latents, fused_attention
from models.hf.fused_caches import cached_in_place
from models.hf.fused_experts import fused_experts
from models.hf.patches import patched
from models.kernels import kernel

# Functions of modeling files that are one operator on the NPU; their names are the library's conventions.
_FUNCTIONS = (
    (re.compile(r"apply_.*(rotary|rope)"), "ApplyRotaryPosEmb"),
    (re.compile(r"(torch_)?(recurrent|chunk)_.*delta_(rule|attention)"), "RecurrentGatedDeltaRule"),
    (re.compile(r"causal_conv1d_(update|fn)"), "CausalConv1d"),
    (re.compile(r"rwkv_linear_attention"), "RwkvLinearAttention"),
    (re.compile(r"mamba2?_(selective_state_update|selective_scan|chunk_scan)"), "SelectiveStateUpdate"),
)


def is_transformers(module: nn.Module) -> bool:
    """Whether a model is one of the library's, also if its source was rewritten; does not import the library."""
    return any(
        c.__name__ == "PreTrainedModel" and c.__module__.startswith("transformers.") for c in type(module).__mro__
    )


@contextmanager
def fused_view(module: nn.Module) -> Iterator[None]:
    """While this is open, `module` calls marked kernels for attention, caches, rotary embedding and experts.

    Results have the right shapes and data flow; their values mean nothing.
    """
    with ExitStack() as stack:
        for part in (fused_attention, absorbed_latents, cached_in_place, fused_experts, _functions):
            stack.enter_context(part(module))
        yield


def _functions(module: nn.Module) -> AbstractContextManager[None]:
    """Functions that are one kernel, wherever the model's classes look them up."""
    stack = ExitStack()
    for name in dict.fromkeys(type(m).__module__ for m in module.modules()):
        source: Any = sys.modules.get(name)
        if source is None or name.startswith("torch."):
            continue
        for attribute, function in list(vars(source).items()):
            for pattern, op in _FUNCTIONS:
                if pattern.match(attribute.lstrip("_")) and callable(function):
                    stack.enter_context(patched(source, attribute, kernel(op, "vector")(function)))
    return _closing(stack)


@contextmanager
def _closing(stack: ExitStack) -> Iterator[None]:
    with stack:
        yield
