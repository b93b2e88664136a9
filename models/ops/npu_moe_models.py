"""NPU operators of DeepSeek-V3 and Qwen3-MoE, in the manner of `models.ops.npu`, which exports them."""

import torch
from torch import Tensor

_INT8_PROJECTIONS = 2  # weight_quant_mode of npu_mla_prolog_v3: q_a, q_b and kv_a
_SIGMOID = 1  # norm_type of npu_moe_gating_top_k
_SUM_OF_TWO = 1  # group_select_mode


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
    q_nope, q_rope, _, _, _ = torch.ops.npu.npu_mla_prolog_v3(
        x,
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
        dequant_scale_x=scale.unsqueeze(-1),
        dequant_scale_w_dq=q_a_scale.unsqueeze(0),
        dequant_scale_w_uq_qr=q_b_scale.unsqueeze(0),
        dequant_scale_w_dkv_kr=kv_a_scale.unsqueeze(0),
        rmsnorm_epsilon_cq=epsilon,
        rmsnorm_epsilon_ckv=epsilon,
        cache_mode="PA_BSND",
        weight_quant_mode=_INT8_PROJECTIONS,
    )
    return q_nope, q_rope


def moe_gating_grouped_top_k(
    logits: Tensor, bias: Tensor, top_k: int, groups: int, top_groups: int, routed_scaling_factor: float
) -> tuple[Tensor, Tensor]:
    weights, expert_ids, _ = torch.ops.npu.npu_moe_gating_top_k(
        logits,
        top_k,
        bias=bias,
        k_group=top_groups,
        group_count=groups,
        group_select_mode=_SUM_OF_TWO,
        renorm=0,
        norm_type=_SIGMOID,
        routed_scaling_factor=routed_scaling_factor,
        eps=1e-20,
    )
    return expert_ids, weights


def moe_gating_top_k_softmax(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    weights, expert_ids, _ = torch.ops.npu.npu_moe_gating_top_k_softmax(logits, None, k=top_k)
    return expert_ids, weights
