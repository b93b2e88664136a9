"""Attention of transformers models as one kernel over a cache that is written in place.

MLA keeps its compressed latents in the cache. The library expands them to keys and values of every head for all cached
tokens; the NPU absorbs the expansion (`kv_b_proj`) into the queries and the output, so the attention reads the latents,
and the expansion costs what it does for the tokens of this step.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from models.hf.patches import patched
from models.kernels import Cost, kernel
from models.ops import costs

_NAME = "fused_infer_attention_score"
_LATENTS = "_npu_trace_latents"


def _attention_cost(query: Tensor, keys: Tensor, values: Tensor, extra: list[Tensor], latents: Any) -> Cost:
    batch, heads, length, key_dim = query.shape
    cached = keys.shape[2]
    if latents is None:
        value_dim = values.shape[-1]
        moved = costs.tensor_bytes(query) + query.element_size() * batch * heads * length * value_dim
        stored = costs.tensor_bytes(keys) + costs.tensor_bytes(values)
    else:  # in the space of the latents
        latent, rope = latents
        key_dim, value_dim = latent.shape[-1] + rope.shape[-1], latent.shape[-1]
        moved = query.element_size() * batch * heads * length * (key_dim + value_dim)
        stored = costs.tensor_bytes(latent) + costs.tensor_bytes(rope)
    return Cost(flops=2.0 * batch * heads * length * cached * (key_dim + value_dim), other_bytes=float(stored + moved))


@kernel("FusedInferAttentionScore", "mix", _attention_cost)
def _attend(query: Tensor, keys: Tensor, values: Tensor, extra: list[Tensor], latents: Any) -> Tensor:
    """query [B, N, T, D], keys and values [B, kv heads, L, D], latents or None -> [B, T, N, value dimension]."""
    batch, heads, length, _ = query.shape
    return query.new_zeros(batch, length, heads, values.shape[-1])


def _interface(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, *_: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """What the library calls in place of its own attention functions."""
    extra = [t for t in (attention_mask, *kwargs.values()) if isinstance(t, Tensor)]
    latents = vars(module).pop(_LATENTS, None)
    return _attend(query, key, value, extra, latents), None


def _mask(batch_size: int, q_length: int, kv_length: int, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """A constant: the fused attention knows what to mask, and models with attention of their own add this."""
    dtype = dtype if isinstance(dtype, torch.dtype) else torch.float32
    return torch.zeros(batch_size, 1, q_length, kv_length, dtype=dtype, device=device)


@contextmanager
def fused_attention(module: nn.Module) -> Iterator[None]:
    """Register our attention and select it for every part of the model."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    configs = {id(m.config): m.config for m in module.modules() if hasattr(m, "config")}
    with ExitStack() as stack:
        AttentionInterface.register(_NAME, _interface)
        stack.callback(AttentionInterface._global_mapping.pop, _NAME, None)
        AttentionMaskInterface.register(_NAME, _mask)
        stack.callback(AttentionMaskInterface._global_mapping.pop, _NAME, None)
        for config in list(configs.values()):
            for part in (config, *(getattr(config, key, None) for key in getattr(config, "sub_configs", {}))):
                if part is not None and hasattr(part, "_attn_implementation_internal"):
                    stack.enter_context(patched(part, "_attn_implementation_internal", _NAME))
        yield


# --- MLA and caches ------------------------------------------------------------------------------------------------


def _absorbed(part: nn.Module, expand: Any, step: list[int]) -> Any:
    def expand_kv(latent: Tensor, rope: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        tokens = step[-1]
        keys, values = expand(latent[:, :, -tokens:], rope[:, :, -tokens:], *args, **kwargs)
        vars(part)[_LATENTS] = (latent, rope)
        cached = latent.shape[2]
        return keys[:, :, :1].expand(-1, -1, cached, -1), values[:, :, :1].expand(-1, -1, cached, -1)

    return expand_kv


def _write_cost(cache: Any, update: Any, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Cost:
    """Reads the new rows and writes them, not the cache."""
    return Cost(other_bytes=2.0 * (costs.tensor_bytes(key) + costs.tensor_bytes(value)))


@kernel("ScatterPaKvCache", "vector", _write_cost)
def _write(cache: Any, update: Any, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return update(cache, key, value, *args, **kwargs)


@contextmanager
def cached_in_place(module: nn.Module) -> Iterator[None]:
    """Caches take new rows as a paged cache does (the library copies its own as a whole), and latents stay latents.

    Attention modules that expand latents hand these to the attention, and expand only this step's tokens.
    """
    from transformers.cache_utils import Cache

    update = Cache.update
    step = [1]  # tokens per sequence, as the last write to a cache had them

    def write(cache: Any, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        step[-1] = key_states.shape[-2]
        return _write(cache, update, key_states, value_states, *args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(patched(Cache, "update", write))
        stack.enter_context(patched(Cache, "update_conv_state", _conv_writer(Cache.update_conv_state)))
        stack.enter_context(patched(Cache, "update_recurrent_state", _state_keeper(Cache.update_recurrent_state)))
        for part in module.modules():
            expand = getattr(part, "expand_kv", None)
            if callable(expand):
                stack.enter_context(patched(part, "expand_kv", _absorbed(part, expand, step)))
                stack.callback(vars(part).pop, _LATENTS, None)
        yield


@kernel("InplaceUpdate", "vector")
def _write_conv(cache: Any, update: Any, states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return update(cache, states, *args, **kwargs)


def _conv_writer(update: Any) -> Any:
    def write(cache: Any, conv_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _write_conv(cache, update, conv_states, *args, **kwargs)

    return write


def _state_keeper(update: Any) -> Any:
    """Recurrent kernels write the state where it is: it is not copied afterwards."""

    def keep(cache: Any, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        layer = cache.layers[layer_idx]
        if not layer.is_recurrent_states_initialized[state_idx]:
            return update(cache, recurrent_states, layer_idx, state_idx, **kwargs)
        layer.recurrent_states[state_idx] = recurrent_states
        return recurrent_states

    return keep
