"""Dense projections in bf16 and int8, and the gated activation between two of them."""

import torch
from torch import Tensor

from models.kernels import kernel
from models.ops import costs, plain
from models.ops.backend import backend
from models.ops.routing import Routing


@kernel("MatMul", "cube", costs.matmul)
def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, K], weight [N, K] -> [T, N]."""
    return plain.matmul(x, weight)


@kernel("TransposeBatchMatMul", "cube", costs.transpose_batch_matmul)
def transpose_batch_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, N, D], weight [N, D, V] -> [T, N V]."""
    return backend(x).transpose_batch_matmul(x, weight)


@kernel("DynamicQuant", "vector")
def dynamic_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """Per token: x [T, K] -> int8 [T, K] and float32 scales [T]."""
    return backend(x).dynamic_quant(x)


@kernel("QuantBatchMatmul", "cube", costs.matmul)
def quant_matmul(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    scale: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """int8 x [T, K], int8 weight [N, K] -> [T, N]: `dtype` with row scales [T], int32 sums without."""
    return backend(x).quant_matmul(x, weight, weight_scale, scale, dtype)


@kernel("SwiGLU", "vector", costs.swiglu)
def swiglu(x: Tensor, routing: Routing | None = None) -> Tensor:
    """x [T, 2 I] = (gate, up) -> silu(gate) * up [T, I]; `routing` if these are rows of experts."""
    return backend(x).swiglu(x)


@kernel("DequantSwigluQuant", "vector", costs.dequant_swiglu_quant)
def dequant_swiglu_quant(
    x: Tensor, scale: Tensor, weight_scale: Tensor, counts: Tensor | None = None, routing: Routing | None = None
) -> tuple[Tensor, Tensor]:
    """int32 sums [T, 2 I] -> int8 [T, I] and scales [T]; `weight_scale` is [2 I], or [E, 2 I] with `counts` [E]."""
    return backend(x).dequant_swiglu_quant(x, scale, weight_scale, counts)


def quantise(x: Tensor, enabled: bool) -> tuple[Tensor, Tensor | None]:
    """`dynamic_quant` of x in a quantised model; x itself and None in others."""
    return dynamic_quant(x) if enabled else (x, None)


def activate(
    merged: Tensor,
    scale: Tensor | None,
    weight_scale: Tensor | None,
    counts: Tensor | None = None,
    routing: Routing | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The gated activation between two projections: one fused kernel, which also requantises if there are scales.

    Between the projections of experts it gets their rows' `counts` and `routing`.
    """
    if scale is None or weight_scale is None:
        return swiglu(merged, routing), None
    return dequant_swiglu_quant(merged, scale, weight_scale, counts, routing)
