"""The meaning of every kernel in plain PyTorch: what runs on a CPU, and on `meta` for shapes.

Static shapes and no data-dependent control flow, like the fused operators that they stand for.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from models.ops import collectives
from models.ops.routing import Routing


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (weight * normed).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, epsilon), total


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def transpose(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous()


def split(x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(part.contiguous() for part in x.split(sizes, 1))


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def transpose_batch_matmul(x: Tensor, weight: Tensor) -> Tensor:
    return torch.matmul(x.transpose(0, 1), weight).transpose(0, 1).reshape(x.shape[0], -1)


def gather(indices: Tensor, table: Tensor) -> Tensor:
    return F.embedding(indices, table)


def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    scale = wide.abs().amax(-1).clamp_min(1e-12) / 127
    return torch.round(wide / scale.unsqueeze(-1)).clamp(-128, 127).to(torch.int8), scale


def quant_matmul(x: Tensor, weight: Tensor, weight_scale: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    accumulated = torch.matmul(x.to(torch.int32), weight.to(torch.int32).t())
    if scale is None:
        return accumulated
    return (accumulated.float() * scale.unsqueeze(-1) * weight_scale).to(dtype)


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def dequant_swiglu_quant(
    x: Tensor, scale: Tensor, weight_scale: Tensor, counts: Tensor | None
) -> tuple[Tensor, Tensor]:
    per_channel = weight_scale
    if counts is not None:
        expert, _ = _expert_of_row(x.shape[0], counts)
        per_channel = weight_scale[expert]
    return dynamic_quant(swiglu(x.float() * scale.unsqueeze(-1) * per_channel))


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
    query = rms_norm(hidden_states @ q_a_weight, q_a_gamma, epsilon) @ q_b_weight
    latent = hidden_states @ kv_a_weight
    return _absorb(query, latent, w_k, kv_a_gamma, cos, sin, slot_mapping, nope_cache, rope_cache, epsilon)


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
    query = quant_matmul(x, q_a_weight.t(), q_a_scale, scale, w_k.dtype)
    query, query_scale = dynamic_quant(rms_norm(query, q_a_gamma, epsilon))
    query = quant_matmul(query, q_b_weight.t(), q_b_scale, query_scale, w_k.dtype)
    latent = quant_matmul(x, kv_a_weight.t(), kv_a_scale, scale, w_k.dtype)
    return _absorb(query, latent, w_k, kv_a_gamma, cos, sin, slot_mapping, nope_cache, rope_cache, epsilon)


def _absorb(
    query: Tensor,
    latent: Tensor,
    w_k: Tensor,
    kv_a_gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    nope_cache: Tensor,
    rope_cache: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """What follows the projections: the latent goes into the caches, the key half of kv_b into the query."""
    heads, nope_dim, latent_dim = w_k.shape
    query = query.view(query.shape[0], heads, -1)
    q_nope, q_rope = query.split([nope_dim, query.shape[-1] - nope_dim], -1)
    q_nope = torch.matmul(q_nope.transpose(0, 1), w_k).transpose(0, 1)
    k_nope, k_rope = latent.split([latent_dim, latent.shape[-1] - latent_dim], -1)
    k_nope = rms_norm(k_nope, kv_a_gamma, epsilon)
    _store(nope_cache, slot_mapping, k_nope)
    _store(rope_cache, slot_mapping, _interleaved_rope(k_rope, cos, sin))
    return q_nope.contiguous(), _interleaved_rope(q_rope, cos.unsqueeze(1), sin.unsqueeze(1))


def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return _half_rope(query, cos, sin), _half_rope(key, cos, sin)


def write_both(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> tuple[Tensor, Tensor]:
    return write_rows(key, key_cache, slot_mapping), write_rows(value, value_cache, slot_mapping)


def write_rows(rows: Tensor, cache: Tensor, slot_mapping: Tensor) -> Tensor:
    _store(cache, slot_mapping, rows)
    return cache


def fused_infer_attention_score(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: Any,
    scale: float,
    query_rope: Tensor | None,
    key_rope_cache: Tensor | None,
) -> Tensor:
    tokens, heads, _ = query.shape
    sequences = metadata.block_table.shape[0]
    key, value = _cached(key_cache, metadata), _cached(value_cache, metadata)  # [B, L, kv heads, D]
    if query_rope is not None and key_rope_cache is not None:
        query = torch.cat([query, query_rope], -1)
        key = torch.cat([key, _cached(key_rope_cache, metadata)], -1)
    groups = heads // key.shape[2]
    query = query.view(sequences, tokens // sequences, key.shape[2], groups, -1)
    scores = torch.einsum("bqhgd,blhd->bhgql", query, key).float() * scale
    positions = metadata.positions.view(sequences, 1, 1, -1, 1)
    future = torch.arange(key.shape[1], device=key.device) > positions
    weights = scores.masked_fill(future, float("-inf")).softmax(-1).to(value.dtype)
    return torch.einsum("bhgql,blhd->bqhgd", weights, value).reshape(tokens, heads, -1)


def moe_gating_top_k(logits: Tensor, bias: Tensor, top_k: int, routed_scaling_factor: float) -> tuple[Tensor, Tensor]:
    scores = logits.softmax(-1)
    expert_ids = torch.topk(scores + bias, top_k, -1).indices
    return expert_ids.to(torch.int32), scores.gather(-1, expert_ids) * routed_scaling_factor


def moe_gating_grouped_top_k(
    logits: Tensor, bias: Tensor, top_k: int, groups: int, top_groups: int, routed_scaling_factor: float
) -> tuple[Tensor, Tensor]:
    scores = logits.sigmoid()
    choice = (scores + bias).unflatten(-1, (groups, -1))
    best = choice.topk(2, -1).values.sum(-1).topk(top_groups, -1).indices
    outside = torch.ones_like(choice[..., 0], dtype=torch.bool).scatter(-1, best, False)
    choice = choice.masked_fill(outside.unsqueeze(-1), float("-inf")).flatten(1)
    expert_ids = choice.topk(top_k, -1).indices
    weights = scores.gather(-1, expert_ids)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return expert_ids.to(torch.int32), weights * routed_scaling_factor


def moe_gating_top_k_softmax(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    weights, expert_ids = logits.softmax(-1).topk(top_k, -1)
    return expert_ids.to(torch.int32), weights


def dispatch(
    x: Tensor, expert_ids: Tensor, routing: Routing, quantised: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    if routing.ep_size > 1 and not collectives.is_loopback("moe_ep"):
        x = collectives.all_gather(x, "moe_ep", routing.ep_size)
        expert_ids = collectives.all_gather(expert_ids, "moe_ep", routing.ep_size)
        local = expert_ids.flatten() - collectives.rank("moe_ep") * routing.local_experts
        here = (local >= 0) & (local < routing.local_experts)
    else:  # loopback: this die's experts stand for those of all dies, so that every pick is computed
        local = expert_ids.flatten() % routing.local_experts
        here = expert_ids.flatten() < routing.experts
    local = torch.where(here, local, routing.local_experts)
    order = torch.argsort(local, stable=True)
    rows = x[order // routing.top_k]
    counts = (local.unsqueeze(-1) == torch.arange(routing.local_experts, device=x.device)).sum(0)
    if not quantised:
        return rows, None, order, counts
    rows, scale = dynamic_quant(rows)
    return rows, scale, order, counts


def combine(
    expert_out: Tensor, order: Tensor, expert_ids: Tensor, expert_weights: Tensor, x: Tensor, routing: Routing
) -> Tensor:
    real = routing.ep_size > 1 and not collectives.is_loopback("moe_ep")
    picked = collectives.all_gather(expert_weights, "moe_ep", routing.ep_size) if real else expert_weights
    by_pick = expert_out[torch.argsort(order)].view(*picked.shape, -1)  # rows beyond the local experts are zero
    total = (by_pick * picked.unsqueeze(-1).to(by_pick.dtype)).sum(1)
    if real:
        total = collectives.reduce_scatter(total, "moe_ep", routing.ep_size)
    identity = torch.where(expert_ids >= routing.experts, expert_weights, 0).sum(-1, keepdim=True)
    return total + identity.to(x.dtype) * x


def finalize_routing(expert_out: Tensor, order: Tensor, expert_weights: Tensor) -> Tensor:
    by_pick = expert_out[torch.argsort(order)].view(*expert_weights.shape, -1)  # rows of zero experts are zero
    return (by_pick * expert_weights.unsqueeze(-1)).sum(1)


def grouped_matmul(
    x: Tensor,
    weight: Tensor,
    counts: Tensor,
    scale: Tensor | None,
    weight_scale: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    expert, valid = _expert_of_row(x.shape[0], counts)
    wide = torch.int32 if x.dtype is torch.int8 else x.dtype
    out = torch.matmul(x.to(wide).unsqueeze(1), weight.to(wide)[expert]).squeeze(1)
    if scale is not None and weight_scale is not None:
        out = (out.float() * scale.unsqueeze(-1) * weight_scale[expert]).to(dtype)
    return torch.where(valid.unsqueeze(-1), out, 0)


def _expert_of_row(rows: int, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Which expert each of the sorted rows belongs to, and whether to any."""
    ends = counts.cumsum(0)
    expert = (torch.arange(rows, device=counts.device).unsqueeze(-1) >= ends).sum(-1)
    return expert.clamp_max(counts.shape[0] - 1), expert < counts.shape[0]


def _store(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Write [T, ...] into the slots of a paged cache [blocks, block, heads, D]."""
    cache.view(-1, *cache.shape[2:])[slots] = rows.view(-1, *cache.shape[2:]).to(cache.dtype)


def _cached(cache: Tensor, metadata: Any) -> Tensor:
    """The pages of every sequence: [B, blocks x block, heads, D]."""
    pages = cache[metadata.block_table]
    return pages.flatten(1, 2)


def _interleaved_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs (0, 1), (2, 3), ...; the result holds all first halves, then all second ones."""
    half = x.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)


def _half_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs (0, D/2), (1, D/2 + 1), ..."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


init_routing = dispatch
