"""Mixtures of experts: gating, dispatch, grouped matmul, combine."""

from typing import Any

import torch
from torch import Tensor

from models.kernels import kernel
from models.ops import collectives, costs
from models.ops.backend import backend
from models.ops.routing import Routing


@kernel("MoeGatingTopK", "vector")
def moe_gating_top_k(logits: Tensor, bias: Tensor, top_k: int, routed_scaling_factor: float) -> tuple[Tensor, Tensor]:
    """Softmax, then the `top_k` largest of score + bias: int32 expert ids [T, k] and scaled scores [T, k]."""
    return backend(logits).moe_gating_top_k(logits, bias, top_k, routed_scaling_factor)


@kernel("MoeGatingTopK", "vector")
def moe_gating_grouped_top_k(
    logits: Tensor, bias: Tensor, top_k: int, groups: int, top_groups: int, routed_scaling_factor: float
) -> tuple[Tensor, Tensor]:
    """Sigmoid scores; `top_k` experts of the best groups: int32 expert ids [T, k] and weights [T, k].

    Experts form `groups` of equal size. A group counts as the sum of its two largest score + bias, and experts are
    picked by score + bias from the `top_groups` best groups. Weights are the scores of the picked experts, divided
    by their sum and scaled.
    """
    return backend(logits).moe_gating_grouped_top_k(logits, bias, top_k, groups, top_groups, routed_scaling_factor)


@kernel("MoeGatingTopKSoftmax", "vector")
def moe_gating_top_k_softmax(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Softmax, then the `top_k` largest: int32 expert ids [T, k] and their probabilities [T, k]."""
    return backend(logits).moe_gating_top_k_softmax(logits, top_k)


@kernel("MoeInitRouting", "vector", costs.dispatch)
def moe_init_routing(
    x: Tensor, expert_ids: Tensor, routing: Routing, quantised: bool
) -> tuple[Tensor, Tensor | None, Any, Tensor]:
    """`moe_dispatch` on one die."""
    return backend(x).init_routing(x, expert_ids, routing, quantised)


@kernel("MoeDistributeDispatch", "communication", costs.dispatch)
def moe_distribute_dispatch(
    x: Tensor, expert_ids: Tensor, routing: Routing, quantised: bool
) -> tuple[Tensor, Tensor | None, Any, Tensor]:
    """`moe_dispatch` over an expert-parallel group."""
    return backend(x).dispatch(x, expert_ids, routing, quantised)


@kernel("MoeFinalizeRouting", "vector", costs.finalize)
def moe_finalize_routing(expert_out: Tensor, order: Any, expert_weights: Tensor, routing: Routing) -> Tensor:
    """Adds the experts' results [R, H] of each token by weight [T, k], which has their type."""
    return backend(expert_out).finalize_routing(expert_out, order, expert_weights)


@kernel("MoeDistributeCombine", "communication", costs.combine)
def moe_distribute_combine(
    expert_out: Tensor, order: Any, expert_ids: Tensor, expert_weights: Tensor, x: Tensor, routing: Routing
) -> Tensor:
    """`moe_combine` over an expert-parallel group."""
    return backend(x).combine(expert_out, order, expert_ids, expert_weights, x, routing)


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
    return _combine_on_one_die(expert_out, order, expert_ids, expert_weights, x, routing)


def _combine_on_one_die(
    expert_out: Tensor, order: Any, expert_ids: Tensor, expert_weights: Tensor, x: Tensor, routing: Routing
) -> Tensor:
    """MoeFinalizeRouting knows no zero experts, and takes weights in the rows' type: the rest is small kernels."""
    if not routing.zero_experts:
        return moe_finalize_routing(expert_out, order, expert_weights.to(expert_out.dtype), routing)
    own_weights = expert_weights.masked_fill(expert_ids >= routing.experts, 0)
    total = moe_finalize_routing(expert_out, order, own_weights.to(expert_out.dtype), routing)
    identity = (expert_weights - own_weights).sum(-1, keepdim=True)
    return torch.addcmul(total, identity.to(x.dtype), x)


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

    int8 rows give int32 sums without scales, and `dtype` with row scales [R] and channel scales [E, N] (stored
    in `dtype`, as the operator wants them).
    """
    return backend(x).grouped_matmul(x, weight, counts, scale, weight_scale, dtype)
