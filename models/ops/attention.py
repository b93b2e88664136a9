"""Attention over paged caches, and what precedes it."""

from typing import Any

from torch import Tensor

from models.kernels import kernel
from models.ops import costs
from models.ops.backend import backend


@kernel("MLAProlog", "mix", costs.mla_prolog)
def mla_prolog(
    hidden_states: Tensor,
    q_a_weight: Tensor,
    q_b_weight: Tensor,
    kv_a_weight: Tensor,
    w_k: Tensor,
    q_a_gamma: Tensor,
    kv_a_gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    nope_cache: Tensor,
    rope_cache: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """All that precedes absorbed attention: three projections, two norms, RoPE, key up-projection, cache write.

    Args:
        hidden_states: [T, H].
        q_a_weight, q_b_weight, kv_a_weight: [in, out].
        w_k: the key part of kv_b, [N, nope, latent].
        cos, sin: [T, rope].
        slot_mapping: cache slot of each token, [T].
        nope_cache, rope_cache: [blocks, block, 1, latent or rope], written in place.

    Returns:
        Queries [T, N, latent] and [T, N, rope].
    """
    return backend(hidden_states).mla_prolog(
        hidden_states,
        q_a_weight,
        q_b_weight,
        kv_a_weight,
        w_k,
        q_a_gamma,
        kv_a_gamma,
        cos,
        sin,
        slot_mapping,
        nope_cache,
        rope_cache,
        epsilon,
    )


@kernel("MLAProlog", "mix", costs.mla_prolog_quant)
def mla_prolog_quant(
    x: Tensor,
    scale: Tensor,
    q_a_weight: Tensor,
    q_b_weight: Tensor,
    kv_a_weight: Tensor,
    q_a_scale: Tensor,
    q_b_scale: Tensor,
    kv_a_scale: Tensor,
    w_k: Tensor,
    q_a_gamma: Tensor,
    kv_a_gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    nope_cache: Tensor,
    rope_cache: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """`mla_prolog` with the three projections in int8; norms, `w_k` and caches are not quantised.

    Args:
        x, scale: int8 hidden states [T, H] and their scales [T].
        q_a_weight, q_b_weight, kv_a_weight: int8 [in, out].
        q_a_scale, q_b_scale, kv_a_scale: float32 [out], one per output channel.

    Returns:
        Queries [T, N, latent] and [T, N, rope] in the type of `w_k`.
    """
    return backend(x).mla_prolog_quant(
        x,
        scale,
        q_a_weight,
        q_b_weight,
        kv_a_weight,
        q_a_scale,
        q_b_scale,
        kv_a_scale,
        w_k,
        q_a_gamma,
        kv_a_gamma,
        cos,
        sin,
        slot_mapping,
        nope_cache,
        rope_cache,
        epsilon,
    )


@kernel("ApplyRotaryPosEmb", "vector")
def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates query and key [T, heads, D] by cos, sin [T, D]."""
    return backend(query).apply_rotary_pos_emb(query, key, cos, sin)


def write_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, exe_mode: str
) -> tuple[Tensor, Tensor]:
    """Writes key and value [T, heads, D] into the paged caches [blocks, block, heads, D] and returns these.

    One kernel, but two in npugraph_ex, which (torch_npu 2.13) makes the operator behind that kernel functional and does
    not undo it: a step would end with a copy of every whole cache. The operator that writes one cache stays in place.
    """
    if exe_mode == "npugraph_ex":
        return _write_rows(key, key_cache, slot_mapping), _write_rows(value, value_cache, slot_mapping)
    return _write_both(key, value, key_cache, value_cache, slot_mapping)


@kernel("ScatterPaKvCache", "vector", costs.write_both)
def _write_both(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> tuple[Tensor, Tensor]:
    return backend(key).write_both(key, value, key_cache, value_cache, slot_mapping)


@kernel("ScatterNdUpdate", "vector", costs.write_rows)
def _write_rows(rows: Tensor, cache: Tensor, slot_mapping: Tensor) -> Tensor:
    return backend(rows).write_rows(rows, cache, slot_mapping)


@kernel("FusedInferAttentionScore", "mix", costs.fused_infer_attention_score)
def fused_infer_attention_score(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: Any,
    scale: float,
    query_rope: Tensor | None = None,
    key_rope_cache: Tensor | None = None,
) -> Tensor:
    """Causal attention over paged caches; MLA passes its latent cache as key and as value, and the RoPE parts.

    Args:
        query: [T, N, D], the sequences' tokens one after the other, equally many each.
        key_cache, value_cache: [blocks, block, kv heads, D].
        metadata: the step's `ForwardMetadata`.
        scale: of the scores, before the softmax.

    Returns:
        [T, N, value dimension].
    """
    return backend(query).fused_infer_attention_score(
        query, key_cache, value_cache, metadata, scale, query_rope, key_rope_cache
    )
