"""The fused `torch_npu` operators behind the kernels of `models.ops` (torch_npu 2.13).

Untested on hardware: written against the operators' schemas, and lowered by the real Python front end on `meta`.
Nothing here is imported before it is called, so the module loads without `torch_npu`. An import of `torch` with
`torch_npu` installed registers `torch.ops.npu`. The signatures are those of `models.ops.plain`.

Weights are passed as the parameters themselves (`linear.weight`, never `.data`): a prefetch of the parameter then
reads the buffer that the operator reads.
"""

import importlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from models.ops import collectives, npu_streams
from models.ops.npu_moe_models import mla_prolog_quant as mla_prolog_quant
from models.ops.npu_moe_models import moe_gating_grouped_top_k as moe_gating_grouped_top_k
from models.ops.npu_moe_models import moe_gating_top_k_softmax as moe_gating_top_k_softmax
from models.ops.routing import Routing

_CAUSAL = 3  # sparse_mode: the mask is the compressed causal one
_NO_SMOOTHING = -1  # quant_mode of npu_moe_init_routing_v2
_GROUPS_ARE_COUNTS = 1


_graph_ops: Any = None
_scope: Any = None


def prepare(exe_mode: str) -> None:
    """Import the graph-mode parts of torch_npu: not inside a function that is being compiled, dynamo refuses that.

    Args:
        exe_mode: torchair's operators exist for `ge_graph` only.

    Raises:
        ImportError: torch_npu is not installed; the message names the extra.
    """
    global _graph_ops, _scope
    try:
        if exe_mode == "npugraph_ex":
            _graph_ops, _scope = None, importlib.import_module("npugraph_ex.scope")
            npu_streams.prepare()
        else:
            _graph_ops, _scope = importlib.import_module("torchair.ops"), importlib.import_module("torchair.scope")
    except ImportError as error:
        raise ImportError("the NPU operators need torch_npu: install npu-recipes[npu]") from error


def stream(label: str) -> AbstractContextManager[Any]:
    """A GE stream label (`ge_graph`)."""
    return _scope.npu_stream_switch(label, 3)


def limit_cores(aic: int, aiv: int) -> AbstractContextManager[Any]:
    """Core limits of the operators inside."""
    return _scope.limit_core_num(aic, aiv)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return torch.ops.npu.npu_rms_norm(x, weight, epsilon)[0]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    normed, _, total = torch.ops.npu.npu_add_rms_norm(x, residual, weight, epsilon)
    return normed, total


def transpose_batch_matmul(x: Tensor, weight: Tensor) -> Tensor:
    out = torch.ops.npu.npu_transpose_batchmatmul(x, weight, perm_x1=(1, 0, 2), perm_x2=(0, 1, 2), perm_y=(1, 0, 2))
    return out.reshape(x.shape[0], -1)


def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.npu.npu_dynamic_quant(x)


def quant_matmul(x: Tensor, weight: Tensor, weight_scale: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    weight = weight.transpose(0, 1)
    if scale is None:
        return torch.ops.npu.npu_quant_matmul(x, weight, weight_scale, output_dtype=torch.int32)
    return torch.ops.npu.npu_quant_matmul(x, weight, weight_scale, pertoken_scale=scale, output_dtype=dtype)


def swiglu(x: Tensor) -> Tensor:
    return torch.ops.npu.npu_swiglu(x, -1)


def dequant_swiglu_quant(
    x: Tensor, scale: Tensor, weight_scale: Tensor, counts: Tensor | None
) -> tuple[Tensor, Tensor]:
    return torch.ops.npu.npu_dequant_swiglu_quant(
        x,
        weight_scale=weight_scale,
        activation_scale=scale,
        group_index=counts,
        activate_left=True,
        quant_mode=1,  # dynamic
    )


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
    q_nope, q_rope, _, _, _ = torch.ops.npu.npu_mla_prolog_v3(
        hidden_states,
        q_a_weight,
        q_b_weight,
        w_k,
        kv_a_weight,
        q_a_gamma,
        kv_a_gamma,
        sin,
        cos,
        nope_cache,
        rope_cache,
        cache_index=slot_mapping,
        rmsnorm_epsilon_cq=epsilon,
        rmsnorm_epsilon_ckv=epsilon,
        cache_mode="PA_BSND",
    )
    return q_nope, q_rope


def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    # The kernel writes in place, so torchair puts a TensorMove before query and key. They have no other reader, and GE
    # deletes such copies (TensorMoveDeletePass). An operator on the merged projection, npu_qkv_rms_norm_rope_cache,
    # takes FRACTAL_NZ caches only (PA_NZ).
    rotated = torch.ops.npu.npu_apply_rotary_pos_emb(
        query.unsqueeze(1), key.unsqueeze(1), cos[:, None, None], sin[:, None, None], "BSND", "half"
    )
    return rotated[0].view_as(query), rotated[1].view_as(key)


def write_both(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> tuple[Tensor, Tensor]:
    torch.ops.npu.npu_scatter_pa_kv_cache(key, value, key_cache, value_cache, slot_mapping, cache_mode="Norm")
    return key_cache, value_cache


def write_rows(rows: Tensor, cache: Tensor, slot_mapping: Tensor) -> Tensor:
    # npugraph_ex keeps this operator in place only on a view of the whole cache (its pattern input, view, update).
    torch.ops.npu.npu_scatter_nd_update_(cache.view(-1, *cache.shape[2:]), slot_mapping.view(-1, 1), rows)
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
    if torch.compiler.is_compiling() and _graph_ops is not None:  # lengths stay tensors in a GE graph
        operator: Any = _graph_ops.npu_fused_infer_attention_score_v2
        query_lengths, kv_lengths = metadata.query_lengths, metadata.kv_lengths
    else:
        operator = torch.ops.npu.npu_fused_infer_attention_score_v2
        query_lengths, kv_lengths = list(metadata.host_query_lengths), list(metadata.host_kv_lengths)
    out, _ = operator(
        query,
        key_cache.flatten(2),
        value_cache.flatten(2),
        query_rope=query_rope,
        key_rope=None if key_rope_cache is None else key_rope_cache.flatten(2),
        atten_mask=metadata.attention_mask,
        actual_seq_qlen=query_lengths,
        actual_seq_kvlen=kv_lengths,
        block_table=metadata.block_table,
        num_query_heads=query.shape[1],
        num_key_value_heads=key_cache.shape[2],
        softmax_scale=scale,
        input_layout="TND",
        sparse_mode=0 if metadata.attention_mask is None else _CAUSAL,
        block_size=key_cache.shape[1],
    )
    return out


def moe_gating_top_k(logits: Tensor, bias: Tensor, top_k: int, routed_scaling_factor: float) -> tuple[Tensor, Tensor]:
    weights, expert_ids, _ = torch.ops.npu.npu_moe_gating_top_k(
        logits,
        top_k,
        bias=bias,
        renorm=0,  # softmax, then top k
        norm_type=0,
        routed_scaling_factor=routed_scaling_factor,
    )
    return expert_ids, weights


def init_routing(
    x: Tensor, expert_ids: Tensor, routing: Routing, quantised: bool
) -> tuple[Tensor, Tensor | None, Any, Tensor]:
    rows, order, counts, scale = torch.ops.npu.npu_moe_init_routing_v2(
        x,
        expert_ids,
        active_num=expert_ids.numel(),
        expert_num=routing.experts + routing.zero_experts,
        expert_tokens_num_type=1,  # counts, not sums
        expert_tokens_num_flag=True,
        active_expert_range=[0, routing.experts],
        quant_mode=1 if quantised else _NO_SMOOTHING,
    )
    return rows, scale if quantised else None, order, counts


def finalize_routing(expert_out: Tensor, order: Any, expert_weights: Tensor) -> Tensor:
    return torch.ops.npu.npu_moe_finalize_routing(
        expert_out, None, None, None, expert_weights, order, None, drop_pad_mode=2
    )


def dispatch(
    x: Tensor, expert_ids: Tensor, routing: Routing, quantised: bool
) -> tuple[Tensor, Tensor | None, Any, Tensor]:
    rows, scale, assist, counts, ep_counts, tp_counts, _ = torch.ops.npu.npu_moe_distribute_dispatch_v2(
        x,
        expert_ids,
        collectives.communicator("moe_ep"),
        routing.ep_size,
        collectives.rank("moe_ep"),
        routing.experts,
        quant_mode=2 if quantised else 0,
        copy_expert_num=routing.zero_experts,
    )
    return rows, scale if quantised else None, (assist, ep_counts, tp_counts), counts


def combine(
    expert_out: Tensor, order: Any, expert_ids: Tensor, expert_weights: Tensor, x: Tensor, routing: Routing
) -> Tensor:
    assist, ep_counts, tp_counts = order
    return torch.ops.npu.npu_moe_distribute_combine_v2(
        expert_out,
        expert_ids,
        assist,
        ep_counts,
        expert_weights,
        collectives.communicator("moe_ep"),
        routing.ep_size,
        collectives.rank("moe_ep"),
        routing.experts,
        tp_send_counts=tp_counts,
        ori_x=x if routing.zero_experts else None,
        copy_expert_num=routing.zero_experts,
    )


def grouped_matmul(
    x: Tensor,
    weight: Tensor,
    counts: Tensor,
    scale: Tensor | None,
    weight_scale: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    sums = x.dtype is torch.int8 and scale is None
    return torch.ops.npu.npu_grouped_matmul(
        [x],
        [weight],
        scale=None if scale is None or weight_scale is None else [weight_scale],
        per_token_scale=None if scale is None else [scale],
        group_list=counts,
        split_item=3,
        group_type=0,
        group_list_type=_GROUPS_ARE_COUNTS,
        output_dtype=torch.int32 if sums else dtype,
    )[0]
