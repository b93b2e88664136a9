"""Attention of transformers models as one kernel.

MLA keeps its compressed latents in the cache. The library expands them to keys and values of every head for all cached
tokens; the NPU absorbs the expansion (`kv_b_proj`) into the queries and the output, so the attention reads the latents,
and the expansion costs what it does for the tokens of this step.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from models.dataflow import tensors_in
from models.hf.patches import patched
from models.kernels import Cost, active_recorder, kernel
from models.ops import costs

_NAME = "fused_infer_attention_score"
_LATENTS = "_npu_trace_latents"

Latents = tuple[Tensor, Tensor, Tensor]  # cached latents, cached rotary keys, what kv_b_proj gave for this step


def _attention_cost(
    query: Tensor, keys: Tensor, values: Tensor, extra: list[Tensor], latents: Latents | None, indices: Tensor | None
) -> Cost:
    """Reads each cached key and value once, or those that sparse attention picked; 2 T N L (Dqk + Dv) operations."""
    batch, heads, length, key_dim = query.shape
    cached, value_dim = keys.shape[2], values.shape[-1]
    stored = costs.tensor_bytes(keys)
    if latents is not None:  # in the space of the latents, which are keys and values at once
        latent, rope, _ = latents
        key_dim, value_dim = latent.shape[-1] + rope.shape[-1], latent.shape[-1]
        stored = costs.tensor_bytes(latent, rope)
    elif values is not keys:
        stored += costs.tensor_bytes(values)
    if indices is not None and indices.shape[-1] < cached:
        stored *= indices.shape[-1] / cached
        cached = indices.shape[-1]
    moved = query.element_size() * batch * heads * length * (key_dim + value_dim)
    return Cost(
        flops=2.0 * batch * heads * length * cached * (key_dim + value_dim),
        flops_dtype=costs.flops_dtype(query),
        other_bytes=float(stored + moved),
    )


@kernel("FusedInferAttentionScore", "mix", _attention_cost)
def _attend(
    query: Tensor, keys: Tensor, values: Tensor, extra: list[Tensor], latents: Latents | None, indices: Tensor | None
) -> Tensor:
    """query [B, N, T, D], keys and values [B, kv heads, L, D] -> [B, T, N, value dimension].

    Args:
        extra: what else is read (sinks, biases).
        latents: of MLA.
        indices: of the tokens that sparse attention picked, [B, T, k].
    """
    batch, heads, length, _ = query.shape
    return query.new_zeros(batch, length, heads, values.shape[-1])


def _interface(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, *_: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """What the library calls in place of its own attention functions."""
    indices = kwargs.pop("indices", None)
    extra = [t for t in (attention_mask, *kwargs.values()) if isinstance(t, Tensor)]
    latents = vars(module).pop(_LATENTS, None)
    return _attend(query, key, value, extra, latents, indices), None


def _mask(batch_size: int, q_length: int, kv_length: int, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """A constant: the fused attention knows what to mask, and models with attention of their own add this."""
    dtype = dtype if isinstance(dtype, torch.dtype) else torch.float32
    return torch.zeros(batch_size, 1, q_length, kv_length, dtype=dtype, device=device)


@contextmanager
def fused_attention(module: nn.Module) -> Iterator[None]:
    """Register our attention and select it for every part of the model."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    interfaces: tuple[tuple[Any, Any], ...] = ((AttentionInterface, _interface), (AttentionMaskInterface, _mask))
    configs: dict[int, Any] = {id(m.config): m.config for m in module.modules() if hasattr(m, "config")}
    for config in list(configs.values()):
        for key in getattr(config, "sub_configs", {}):
            part = getattr(config, key, None)
            configs[id(part)] = part
    with ExitStack() as stack:
        for interface, function in interfaces:
            interface.register(_NAME, function)
            stack.callback(interface._global_mapping.pop, _NAME, None)
        for config in configs.values():
            if hasattr(config, "_attn_implementation_internal"):
                stack.enter_context(patched(config, "_attn_implementation_internal", _NAME))
        yield


@contextmanager
def absorbed_latents(module: nn.Module) -> Iterator[None]:
    """Attention modules that expand latents hand these to the attention, and expand only this step's tokens."""
    with ExitStack() as stack:
        for part in module.modules():
            expand = getattr(part, "expand_kv", None)
            if callable(expand) and isinstance(getattr(part, "kv_b_proj", None), nn.Module):
                step = [1]  # tokens per sequence of the call that is running
                stack.callback(part.register_forward_pre_hook(_counter(step), with_kwargs=True).remove)
                stack.enter_context(patched(part, "expand_kv", _absorbed(part, expand, step)))
                stack.callback(vars(part).pop, _LATENTS, None)
        yield


def _counter(step: list[int]) -> Any:
    def count(_: nn.Module, args: tuple, kwargs: dict) -> None:
        step[0] = next(tensors_in([args, kwargs])).shape[1]

    return count


def _absorbed(part: Any, expand: Any, step: list[int]) -> Any:
    shapes: list[tuple[torch.Size, torch.Size]] = []

    def expand_kv(latent: Tensor, rope: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if active_recorder() is None or not shapes:  # the step before the recorded one shows the shapes
            keys, values = expand(latent, rope, *args, **kwargs)
            shapes[:] = [(keys.shape, values.shape)]
            return keys, values
        vars(part)[_LATENTS] = (latent, rope, part.kv_b_proj(latent[:, :, -step[0] :]))
        (batch, heads, _, key_dim), (*_, value_dim) = shapes[0]
        cached = latent.shape[2]
        return latent.new_empty(batch, heads, cached, key_dim), latent.new_empty(batch, heads, cached, value_dim)

    return expand_kv
