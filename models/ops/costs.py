"""What one call of each kernel costs: FLOPs, activation bytes, bytes sent. Same arguments as the kernel.

A multiply-add counts two operations. Bytes and rows are those of one die as served, so the experts' rows are the
*expected* ones: of all tokens that can reach this die. Formulas assume the one-process loopback of `collectives`,
because that is where a trace runs.
"""

from typing import Any

import torch
from torch import Tensor

from models.kernels import Cost
from models.ops.routing import Routing

_PEAKS = {torch.int8: "int8", torch.float32: "fp32"}


def tensor_bytes(*tensors: Tensor) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors))


def flops_dtype(weight: Tensor) -> str:
    """Which peak applies: that of the weight's type."""
    return _PEAKS.get(weight.dtype, "bf16")


def matmul(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> Cost:
    """2 M N K for x [M, K] and weight [N, K]."""
    return Cost(flops=2.0 * x.shape[0] * weight.numel(), flops_dtype=flops_dtype(weight))


def transpose_batch_matmul(x: Tensor, weight: Tensor) -> Cost:
    """2 T (H D V) for x [T, H, D] and weight [H, D, V]."""
    return Cost(flops=2.0 * x.shape[0] * weight.numel(), flops_dtype=flops_dtype(weight))


def gather(indices: Tensor, table: Tensor, *_: Any) -> Cost:
    """Reads only the rows that are looked up."""
    share = min(1.0, indices.numel() / table.shape[0])
    row = table.shape[-1] * table.element_size()
    return Cost(other_bytes=float(indices.numel() * row), shares={"table": (share, share, share)})


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
) -> Cost:
    """Three projections and the absorbed key up-projection; writes one cache row per token, not the cache."""
    tokens, heads = hidden_states.shape[0], w_k.shape[0]
    weights = q_a_weight.numel() + q_b_weight.numel() + kv_a_weight.numel() + w_k.numel()
    cached = nope_cache.shape[-1] + rope_cache.shape[-1]
    written = tokens * (heads * cached * hidden_states.element_size() + cached * nope_cache.element_size())
    return Cost(
        flops=2.0 * tokens * weights,
        flops_dtype=flops_dtype(q_a_weight),
        other_bytes=tensor_bytes(hidden_states, cos, sin) + written,
    )


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
) -> Cost:
    """Like `mla_prolog`; bf16 operations of `w_k` count as int8 ones of twice the number, since they run at half the
    peak."""
    tokens, heads = x.shape[0], w_k.shape[0]
    projections = q_a_weight.numel() + q_b_weight.numel() + kv_a_weight.numel()
    cached = nope_cache.shape[-1] + rope_cache.shape[-1]
    written = tokens * cached * (heads * w_k.element_size() + nope_cache.element_size())
    return Cost(
        flops=2.0 * tokens * (projections + 2 * w_k.numel()),
        flops_dtype=flops_dtype(q_a_weight),
        other_bytes=tensor_bytes(x, scale, cos, sin) + written,
    )


def fused_infer_attention_score(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: Any,
    scale: float,
    query_rope: Tensor | None = None,
    key_rope_cache: Tensor | None = None,
) -> Cost:
    """Reads each sequence's keys and values once; 2 T H L (Dqk + Dv) operations for L cached tokens."""
    tokens, heads, head_dim = query.shape
    sequences, blocks = metadata.block_table.shape
    length = blocks * key_cache.shape[1]
    rope_dim = 0 if query_rope is None else query_rope.shape[-1]
    per_token = key_cache.shape[2] * (key_cache.shape[3] + rope_dim)
    if value_cache is not key_cache:  # MLA reads its latent once, as key and as value
        per_token += value_cache.shape[2] * value_cache.shape[3]
    value_dim = value_cache.shape[-1]
    moved = tokens * heads * (head_dim + rope_dim + value_dim) * query.element_size()
    return Cost(
        flops=2.0 * tokens * heads * length * (head_dim + rope_dim + value_dim),
        other_bytes=float(sequences * length * per_token * key_cache.element_size() + moved),
    )


def write_both(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> Cost:
    """Reads the new rows and writes them."""
    return Cost(other_bytes=2.0 * tensor_bytes(key, value))


def write_rows(rows: Tensor, cache: Tensor, slot_mapping: Tensor) -> Cost:
    """Reads the new rows and writes them."""
    return Cost(other_bytes=2.0 * tensor_bytes(rows))


def dispatch(x: Tensor, expert_ids: Tensor, routing: Routing, quantised: bool) -> Cost:
    """Sends each token once per expert that it picked, zero experts excluded; int8 rows carry a float32 scale."""
    row = x.shape[-1] + 4 if quantised else x.shape[-1] * x.element_size()
    rows = routing.expected_rows(x.shape[0])
    remote = rows * row * (routing.ep_size - 1) / routing.ep_size
    return Cost(other_bytes=tensor_bytes(x, expert_ids) + rows * row, comm_bytes=remote, comm_ranks=routing.ep_size)


def combine(
    expert_out: Tensor,
    order: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    x: Tensor,
    routing: Routing,
) -> Cost:
    """Sends every expert's result back to the die of its token."""
    rows = routing.expected_rows(x.shape[0]) * x.shape[-1] * x.element_size()
    remote = rows * (routing.ep_size - 1) / routing.ep_size
    return Cost(other_bytes=rows + 2 * tensor_bytes(x), comm_bytes=remote, comm_ranks=routing.ep_size)


def finalize(expert_out: Tensor, order: Tensor, expert_weights: Tensor, routing: Routing) -> Cost:
    """Reads the rows of the experts and writes one per token."""
    tokens, row = expert_weights.shape[0], expert_out.shape[-1] * expert_out.element_size()
    return Cost(other_bytes=(routing.expected_rows(tokens) + tokens) * row + tensor_bytes(expert_weights))


def _tokens(x: Tensor, routing: Routing) -> int:
    """Tokens of this die behind the rows of its experts: the loopback's dispatch makes top_k rows per token."""
    return x.shape[0] // routing.top_k


def _rows(x: Tensor, routing: Routing | None) -> float:
    """Rows to expect, which are fewer where zero experts take some."""
    return float(x.shape[0]) if routing is None else routing.expected_rows(_tokens(x, routing))


def swiglu(x: Tensor, routing: Routing | None = None) -> Cost:
    """Reads gate and up, writes half as much."""
    return Cost(other_bytes=_rows(x, routing) * x.shape[-1] * x.element_size() * 1.5)


def dequant_swiglu_quant(
    x: Tensor, scale: Tensor, weight_scale: Tensor, counts: Tensor | None = None, routing: Routing | None = None
) -> Cost:
    """Reads int32 sums and a float32 scale per row, writes int8 and another scale."""
    row = x.shape[-1] * x.element_size() + x.shape[-1] // 2 + 2 * scale.element_size()
    return Cost(other_bytes=_rows(x, routing) * row)


def grouped_matmul(
    x: Tensor,
    weight: Tensor,
    counts: Tensor,
    routing: Routing,
    scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Cost:
    """Expected rows of all local experts; the stack's share that is read is that of experts with tokens."""
    tokens, rows = _tokens(x, routing), _rows(x, routing)
    out_size = 4 if x.dtype is torch.int8 and scale is None else 2
    return Cost(
        flops=2.0 * rows * weight.shape[1] * weight.shape[2],
        flops_dtype=flops_dtype(weight),
        other_bytes=rows * (weight.shape[1] * x.element_size() + weight.shape[2] * out_size),
        shares={"weight": routing.active_share(tokens)},
    )


def all_gather(x: Tensor, group: str, size: int) -> Cost:
    return Cost(comm_bytes=tensor_bytes(x) * (size - 1), comm_ranks=size)


def reduce_scatter(x: Tensor, group: str, size: int) -> Cost:
    return Cost(comm_bytes=tensor_bytes(x) * (size - 1) / size, comm_ranks=size)


def all_to_all(x: Tensor, group: str, size: int) -> Cost:
    return Cost(comm_bytes=tensor_bytes(x) * (size - 1) / size, comm_ranks=size)


def all_reduce(x: Tensor, group: str, size: int) -> Cost:
    """A ring: reduce-scatter, then all-gather."""
    return Cost(comm_bytes=2 * tensor_bytes(x) * (size - 1) / size, comm_ranks=size)


def send(x: Tensor) -> Cost:
    return Cost(comm_bytes=tensor_bytes(x), comm_ranks=2)


def recv(x: Tensor) -> Cost:
    return Cost(comm_bytes=tensor_bytes(x), comm_ranks=2)
