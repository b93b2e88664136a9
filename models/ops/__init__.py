"""The kernels that an NPU would launch, each with a plain PyTorch meaning on CPU and `meta`.

A function marked with `kernel` is one launch. On NPU tensors, or inside `use_npu_operators`, it calls the fused
`torch_npu` operator (`models.ops.npu`), otherwise `models.ops.plain`. Shapes: T tokens of this die, H hidden size,
N attention heads of this die, E local experts, R rows that the experts see.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from models.kernels import cores_context, kernel, stream_context
from models.ops import collectives, costs, npu, plain
from models.ops.routing import Routing

__all__ = [
    "Routing",
    "activate",
    "add",
    "add_rms_norm",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "apply_rotary_pos_emb",
    "cast",
    "dequant_swiglu_quant",
    "dynamic_quant",
    "fused_infer_attention_score",
    "gather",
    "grouped_matmul",
    "limit_cores",
    "matmul",
    "mla_prolog",
    "moe_combine",
    "moe_dispatch",
    "moe_gating_top_k",
    "quant_matmul",
    "quantise",
    "recv",
    "reduce_scatter",
    "rms_norm",
    "send",
    "stream",
    "swiglu",
    "transpose",
    "transpose_batch_matmul",
    "use_npu_operators",
    "write_cache",
]

_npu_operators = False


@contextmanager
def use_npu_operators() -> Iterator[None]:
    """Call the fused `torch_npu` operators, streams and core limits: to run on an NPU, or to lower on `meta`.

    Raises:
        ImportError: torch_npu is not installed.
    """
    global _npu_operators
    npu.prepare()
    before, _npu_operators = _npu_operators, True
    try:
        yield
    finally:
        _npu_operators = before


def _backend(x: Tensor) -> ModuleType:
    return npu if _npu_operators or x.device.type == "npu" else plain


# ------------------------------------------------------------------------------------------------ streams and cores


def stream(label: str, enabled: bool) -> AbstractContextManager[Any]:
    """Run the kernels inside on a side stream of this name; nothing when not enabled."""
    if not enabled:
        return nullcontext()
    return npu.stream(label) if _npu_operators else stream_context(label)


def limit_cores(limits: tuple[int, int] | None, enabled: bool) -> AbstractContextManager[Any]:
    """Let the kernels inside use only (AIC, AIV) cores; nothing when not enabled or without limits."""
    if not enabled or limits is None:
        return nullcontext()
    return npu.limit_cores(*limits) if _npu_operators else cores_context(*limits)


# ------------------------------------------------------------------------------------------ norms and small kernels


@kernel("RmsNorm", "vector")
def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, in float32."""
    return _backend(x).rms_norm(x, weight, epsilon)


@kernel("AddRmsNorm", "vector")
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and x + residual."""
    return _backend(x).add_rms_norm(x, residual, weight, epsilon)


@kernel("Cast", "vector")
def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another type."""
    return plain.cast(x, dtype)


@kernel("Add", "vector")
def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y."""
    return plain.add(x, y)


@kernel("Transpose", "vector")
def transpose(x: Tensor) -> Tensor:
    """[a, b, c] -> contiguous [b, a, c]."""
    return plain.transpose(x)


@kernel("GatherV2", "vector", costs.gather)
def gather(indices: Tensor, table: Tensor) -> Tensor:
    """Rows of a table: indices [T], table [rows, D] -> [T, D]."""
    return plain.gather(indices, table)


# --------------------------------------------------------------------------------------------------------- matmuls


@kernel("MatMul", "cube", costs.matmul)
def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, K], weight [N, K] -> [T, N]."""
    return plain.matmul(x, weight)


@kernel("TransposeBatchMatMul", "cube", costs.transpose_batch_matmul)
def transpose_batch_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, N, D], weight [N, D, V] -> [T, N V]."""
    return _backend(x).transpose_batch_matmul(x, weight)


@kernel("DynamicQuant", "vector")
def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """Per token: x [T, K] -> int8 [T, K] and float32 scales [T]."""
    return _backend(x).dynamic_quant(x)


@kernel("QuantBatchMatmul", "cube", costs.matmul)
def quant_matmul(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    scale: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """int8 x [T, K], int8 weight [N, K] -> [T, N]: `dtype` with row scales [T], int32 sums without."""
    return _backend(x).quant_matmul(x, weight, weight_scale, scale, dtype)


@kernel("SwiGLU", "vector")
def swiglu(x: Tensor) -> Tensor:
    """x [T, 2 I] = (gate, up) -> silu(gate) * up [T, I]."""
    return _backend(x).swiglu(x)


@kernel("DequantSwigluQuant", "vector")
def dequant_swiglu_quant(
    x: Tensor, scale: Tensor, weight_scale: Tensor, counts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """int32 sums [T, 2 I] -> int8 [T, I] and scales [T]; `weight_scale` is [2 I], or [E, 2 I] with `counts` [E]."""
    return _backend(x).dequant_swiglu_quant(x, scale, weight_scale, counts)


def quantise(x: Tensor, enabled: bool) -> tuple[Tensor, Tensor | None]:
    """`dynamic_quant` of x in a quantised model; x itself and None in others."""
    return dynamic_quant(x) if enabled else (x, None)


def activate(
    merged: Tensor, scale: Tensor | None, weight_scale: Tensor | None, counts: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The gated activation between two projections: one fused kernel, which also requantises if there are scales."""
    if scale is None or weight_scale is None:
        return swiglu(merged), None
    return dequant_swiglu_quant(merged, scale, weight_scale, counts)


# ------------------------------------------------------------------------------------------------------- attention


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
    return _backend(hidden_states).mla_prolog(
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


@kernel("ApplyRotaryPosEmb", "vector")
def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates query and key [T, heads, D] by cos, sin [T, D]."""
    return _backend(query).apply_rotary_pos_emb(query, key, cos, sin)


@kernel("ScatterPaKvCache", "vector", costs.write_cache)
def write_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> tuple[Tensor, Tensor]:
    """Writes key and value [T, heads, D] into the paged caches [blocks, block, heads, D] and returns these."""
    return _backend(key).write_cache(key, value, key_cache, value_cache, slot_mapping)


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
    return _backend(query).fused_infer_attention_score(
        query, key_cache, value_cache, metadata, scale, query_rope, key_rope_cache
    )


# --------------------------------------------------------------------------------------------------------- experts


@kernel("MoeGatingTopK", "vector")
def moe_gating_top_k(logits: Tensor, bias: Tensor, top_k: int, routed_scaling_factor: float) -> tuple[Tensor, Tensor]:
    """Softmax, then the `top_k` largest of score + bias: int32 expert ids [T, k] and scaled scores [T, k]."""
    return _backend(logits).moe_gating_top_k(logits, bias, top_k, routed_scaling_factor)


@kernel("MoeInitRouting", "vector", costs.dispatch)
def moe_init_routing(
    x: Tensor, expert_ids: Tensor, routing: Routing, quantised: bool
) -> tuple[Tensor, Tensor | None, Any, Tensor]:
    """`moe_dispatch` on one die."""
    return _backend(x).init_routing(x, expert_ids, routing, quantised)


@kernel("MoeDistributeDispatch", "communication", costs.dispatch)
def moe_distribute_dispatch(
    x: Tensor, expert_ids: Tensor, routing: Routing, quantised: bool
) -> tuple[Tensor, Tensor | None, Any, Tensor]:
    """`moe_dispatch` over an expert-parallel group."""
    return _backend(x).dispatch(x, expert_ids, routing, quantised)


@kernel("MoeFinalizeRouting", "vector", costs.combine)
def moe_finalize_routing(
    expert_out: Tensor, order: Any, expert_ids: Tensor, expert_weights: Tensor, x: Tensor, routing: Routing
) -> Tensor:
    """`moe_combine` on one die."""
    return _backend(x).finalize_routing(expert_out, order, expert_ids, expert_weights, x, routing)


@kernel("MoeDistributeCombine", "communication", costs.combine)
def moe_distribute_combine(
    expert_out: Tensor, order: Any, expert_ids: Tensor, expert_weights: Tensor, x: Tensor, routing: Routing
) -> Tensor:
    """`moe_combine` over an expert-parallel group."""
    return _backend(x).combine(expert_out, order, expert_ids, expert_weights, x, routing)


def moe_dispatch(
    x: Tensor, expert_ids: Tensor, routing: Routing, quantised: bool
) -> tuple[Tensor, Tensor | None, Any, Tensor]:
    """Brings each token [T, H] to the dies of its experts [T, k], sorted by expert, rows of no local expert last.

    Returns:
        Rows [R, H] (int8 if `quantised`), their scales [R] or None, what `moe_combine` needs to undo the order,
        and rows per local expert [E].
    """
    if routing.ep_size > 1:
        return moe_distribute_dispatch(x, expert_ids, routing, quantised)
    return moe_init_routing(x, expert_ids, routing, quantised)


def moe_combine(
    expert_out: Tensor, order: Any, expert_ids: Tensor, expert_weights: Tensor, x: Tensor, routing: Routing
) -> Tensor:
    """Brings the experts' results [R, H] back and adds them by weight [T, k]; zero experts return x itself."""
    if routing.tp_size > 1 and collectives.rank("moe_tp") > 0:  # what zero experts return is added once per group
        expert_weights = torch.where(expert_ids >= routing.experts, 0, expert_weights)
    if routing.ep_size > 1:
        return moe_distribute_combine(expert_out, order, expert_ids, expert_weights, x, routing)
    return moe_finalize_routing(expert_out, order, expert_ids, expert_weights, x, routing)


@kernel("GroupedMatmul", "cube", costs.grouped_matmul)
def grouped_matmul(
    x: Tensor,
    weight: Tensor,
    counts: Tensor,
    routing: Routing,
    scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Sorted rows [R, K], stack [E, K, N], rows per expert [E] -> [R, N]; rows of no local expert give zeros.

    int8 rows give int32 sums without scales, and `dtype` with row scales [R] and channel scales [E, N].
    """
    return _backend(x).grouped_matmul(x, weight, counts, scale, weight_scale, dtype)


# --------------------------------------------------------------------------------------------------- communication


@kernel("AllGather", "communication", costs.all_gather)
def all_gather(x: Tensor, group: str, size: int) -> Tensor:
    """[n, ...] of each rank -> [size n, ...]."""
    return collectives.all_gather(x, group, size)


@kernel("ReduceScatter", "communication", costs.reduce_scatter)
def reduce_scatter(x: Tensor, group: str, size: int) -> Tensor:
    """[size n, ...] of each rank -> this rank's chunk of the sum, [n, ...]."""
    return collectives.reduce_scatter(x, group, size)


@kernel("AllToAll", "communication", costs.all_to_all)
def all_to_all(x: Tensor, group: str, size: int) -> Tensor:
    """Chunk r of [size n, ...] goes to rank r."""
    return collectives.all_to_all(x, group, size)


@kernel("AllReduce", "communication", costs.all_reduce)
def all_reduce(x: Tensor, group: str, size: int) -> Tensor:
    """The sum over the ranks."""
    return collectives.all_reduce(x, group, size)


@kernel("Send", "communication", costs.send)
def send(x: Tensor) -> Tensor:
    """Sends x to the other side of an attention / FFN disaggregated deployment; a copy stands for what arrives."""
    return collectives.send(x)


@kernel("Recv", "communication", costs.recv)
def recv(x: Tensor) -> Tensor:
    """Receives a tensor shaped like x from the other side; in one process, x normalised."""
    return collectives.recv(x)
