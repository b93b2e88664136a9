"""Experts of transformers models as grouped matrix products.

Which rows go where is data, so `meta` can't run the loops over experts that the library has.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from models import ops
from models.hf.patches import patched
from models.kernels import Cost, kernel
from models.ops import costs

_FIRST = ("gate_up_proj", "up_proj")
_SECOND = "down_proj"
_FLAT = ("w1", "v1", "w2")


def _stack_cost(x: Tensor, weight: Tensor, counts: Tensor, routing: ops.Routing, bias: Tensor | None) -> Cost:
    cost = costs.grouped_matmul(x, weight, counts, routing)
    share = cost.shares["weight"]
    return Cost(cost.flops, cost.flops_dtype, cost.other_bytes, {"weight": share, "bias": share})


@kernel("GroupedMatmul", "cube", _stack_cost)
def _grouped_matmul(x: Tensor, weight: Tensor, counts: Tensor, routing: ops.Routing, bias: Tensor | None) -> Tensor:
    """Rows [R, K], stack [E, K, N], bias [E, N] or None -> [R, N]."""
    return x.new_zeros(x.shape[0], weight.shape[2])


def _activate_cost(x: Tensor, width: int, routing: ops.Routing) -> Cost:
    rows = routing.expected_rows(x.shape[0] // routing.top_k)
    return Cost(other_bytes=rows * (x.shape[-1] + width) * x.element_size())


@kernel("SwiGLU", "vector", _activate_cost)
def _activate_gated(x: Tensor, width: int, routing: ops.Routing) -> Tensor:
    return x.new_zeros(x.shape[0], width)


def _multiply_cost(gate: Tensor, up: Tensor, routing: ops.Routing) -> Cost:
    return _activate_cost(gate, 2 * gate.shape[-1], routing)  # reads two, writes one


@kernel("SwiGLU", "vector", _multiply_cost)
def _multiply(gate: Tensor, up: Tensor, routing: ops.Routing) -> Tensor:
    return torch.zeros_like(gate)


@kernel("Activation", "vector", _activate_cost)
def _activate(x: Tensor, width: int, routing: ops.Routing) -> Tensor:
    return x.new_zeros(x.shape[0], width)


@contextmanager
def fused_experts(module: nn.Module) -> Iterator[None]:
    """Modules that own two stacks of experts run as routing, two grouped products and the activation between them."""
    with ExitStack() as stack:
        for part in module.modules():
            own = {name for name, p in part.named_parameters(recurse=False) if p.ndim == 3}
            first = next((name for name in _FIRST if name in own), None)
            if first is not None and _SECOND in own:
                stack.enter_context(patched(part, "forward", partial(_forward, part, first, part.forward)))
            flat = next((child for child in part.children() if _is_flat(part, child)), None)
            if flat is not None:
                stack.enter_context(patched(part, "forward", partial(_flat, part, flat)))
        yield


def _forward(part: Any, first: str, own: Any, *args: Any, **kwargs: Any) -> Tensor:
    """By what the stacks are called with: rows, experts and weights, or the rows of every expert."""
    given = dict(zip(("hidden_states", "top_k_index", "top_k_weights"), args, strict=False)) | kwargs
    if set(given) == {"hidden_states", "top_k_index", "top_k_weights"}:
        return _routed(part, first, **given)
    if len(args) == 1 and not kwargs and hasattr(part, "num_experts"):
        return _everyone(part, first, *args)
    return own(*args, **kwargs)  # stacks that every token goes through


Products = Callable[[Tensor, Tensor, ops.Routing], Tensor]  # sorted rows, rows per expert, routing -> rows


def _dispatched(
    experts: int, total: int, products: Products, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    top_k = top_k_index.shape[-1]
    routing = ops.Routing(experts, total - experts, top_k, 1)
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    expert_ids, weights = top_k_index.reshape(-1, top_k), top_k_weights.reshape(-1, top_k)
    rows, _, order, counts = ops.moe_dispatch(x, expert_ids, routing, False)
    out = products(rows, counts, routing)
    return ops.moe_combine(out, order, expert_ids, weights, x, routing).view(hidden_states.shape)


def _routed(part: Any, first: str, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    experts = getattr(part, _SECOND).shape[0]
    total = getattr(part, "total_experts", experts)  # those without weights return what they get
    products = partial(_products, part, first)
    return _dispatched(experts, total, products, hidden_states, top_k_index, top_k_weights)


def _is_flat(part: Any, child: nn.Module) -> bool:
    """Whether a child holds the stacks of gate, up and down as matrices, the rows of one expert after the other's."""
    own = dict(child.named_parameters(recurse=False))
    count = getattr(part, "num_experts", 0)
    return set(own) == set(_FLAT) and bool(count) and all(p.ndim == 2 and p.shape[0] % count == 0 for p in own.values())


def _flat(part: Any, child: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    gate, up, down = (getattr(child, name).view(part.num_experts, -1, hidden_states.shape[-1]) for name in _FLAT)

    def products(rows: Tensor, counts: Tensor, routing: ops.Routing) -> Tensor:
        gated = _grouped_matmul(rows, gate.transpose(1, 2), counts, routing, None)
        inner = _multiply(gated, _grouped_matmul(rows, up.transpose(1, 2), counts, routing, None), routing)
        return _grouped_matmul(inner, down, counts, routing, None)

    return _dispatched(part.num_experts, part.num_experts, products, hidden_states, top_k_index, top_k_weights)


def _everyone(part: Any, first: str, x: Tensor) -> Tensor:
    """Rows [E T, H] of every token for every expert, those of experts that a token did not pick being zero."""
    experts = getattr(part, _SECOND).shape[0]
    top_k = int(getattr(getattr(part, "config", None), "num_experts_per_tok", 1))
    routing = ops.Routing(experts, 0, top_k, 1)
    rows = x[: x.shape[0] // experts * top_k]
    out = _products(part, first, rows, rows.new_zeros(experts, dtype=torch.int64), routing)
    return out[:1].expand(x.shape)


def _products(part: Any, first: str, rows: Tensor, counts: Tensor, routing: ops.Routing) -> Tensor:
    up, down = getattr(part, first), getattr(part, _SECOND)
    if not getattr(part, "is_transposed", up.shape[1] == rows.shape[1]):
        up, down = up.transpose(1, 2), down.transpose(1, 2)
    merged = _grouped_matmul(rows, up[: routing.experts], counts, routing, getattr(part, f"{first}_bias", None))
    activate = _activate_gated if up.shape[2] == 2 * down.shape[1] else _activate
    inner = activate(merged, down.shape[1], routing)
    return _grouped_matmul(inner, down, counts, routing, getattr(part, f"{_SECOND}_bias", None))
