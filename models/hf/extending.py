"""The state of a model after a long context, on `meta` without running it over that context."""

from typing import Any

import torch
from torch import Tensor, nn

from models.hf.fused_experts import fused_experts
from models.hf.stepping import State, Stepper

_SHORT = 5


def past_state(stepper: Stepper, tokens: int) -> State:
    """The state after `tokens` tokens per sequence.

    On a real device the model is run over them. On `meta` it is run over two short prompts, and what grew with the
    prompt is extended: every dimension and every counter by as much per token; a sliding window holds what fits.
    """
    module = stepper.module
    with torch.no_grad():
        if tokens < 1:
            return State()
        if next(module.parameters()).device.type != "meta" or tokens <= _SHORT + 1:
            return stepper.step(module, stepper.prompt(tokens, seed=2), State())[1]
        with fused_experts(module):  # else every expert of every layer is a step of a Python loop
            short, longer = (stepper.step(module, stepper.prompt(n, seed=2), State())[1] for n in (_SHORT, _SHORT + 1))
        return State(_extended(short.carried, longer.carried, tokens - _SHORT, set()), _longer(short.tokens, tokens))


def _longer(tokens: Tensor | None, count: int) -> Tensor | None:
    return None if tokens is None else tokens.new_zeros(tokens.shape[0], count)


def _extended(short: Any, longer: Any, steps: int, seen: set[int], cap: int | None = None) -> Any:
    """`short` plus `steps` times the difference to `longer`; objects are changed in place."""
    if isinstance(short, Tensor) and isinstance(longer, Tensor):
        grown = [a + steps * (b - a) for a, b in zip(short.shape, longer.shape, strict=True)]
        shape = [n if n == a or cap is None else min(n, cap) for n, a in zip(grown, short.shape, strict=True)]
        return short if list(short.shape) == shape else short.new_empty(shape)
    if isinstance(short, bool) or isinstance(longer, bool):
        return longer
    if isinstance(short, int) and isinstance(longer, int):
        return short + steps * (longer - short)
    if isinstance(short, dict):
        return type(short)((k, _extended(v, longer.get(k), steps, seen, cap)) for k, v in short.items())
    if isinstance(short, list | tuple) and type(short) in (list, tuple):
        return type(short)(_extended(a, b, steps, seen, cap) for a, b in zip(short, longer, strict=True))
    if _is_state(short) and type(short) is type(longer) and id(short) not in seen:
        seen.add(id(short))
        window = getattr(short, "sliding_window", None)
        cap = window - 1 if isinstance(window, int) else cap
        for name, value in list(vars(short).items()):
            vars(short)[name] = _extended(value, vars(longer).get(name), steps, seen, cap)
    return short


def _is_state(value: Any) -> bool:
    """A cache or one of its layers: an object that is no module and no configuration."""
    return hasattr(value, "__dict__") and not isinstance(value, nn.Module | type) and not hasattr(value, "model_type")
