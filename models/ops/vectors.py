"""Norms and small element-wise kernels."""

import torch
from torch import Tensor

from models.kernels import kernel
from models.ops import costs, plain
from models.ops.backend import backend


@kernel("RmsNorm", "vector")
def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, in float32."""
    return backend(x).rms_norm(x, weight, epsilon)


@kernel("AddRmsNorm", "vector")
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and x + residual."""
    return backend(x).add_rms_norm(x, residual, weight, epsilon)


@kernel("Cast", "vector")
def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another type."""
    return plain.cast(x, dtype)


@kernel("Add", "vector")
def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y."""
    return plain.add(x, y)


def split(x: Tensor, sizes: tuple[int, ...], exe_mode: str) -> tuple[Tensor, ...]:
    """[a, b, c] -> contiguous [a, size, c] for each of the sizes, which add up to b.

    A GE graph has a kernel for it. Elsewhere the parts are views of x, and each that is not contiguous (a > 1) is
    copied by a kernel of its own.
    """
    return _split(x, sizes) if exe_mode == "ge_graph" else plain.split(x, sizes)


@kernel("SplitV", "vector")
def _split(x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return plain.split(x, sizes)


@kernel("Transpose", "vector")
def transpose(x: Tensor) -> Tensor:
    """[a, b, c] -> contiguous [b, a, c]."""
    return plain.transpose(x)


@kernel("GatherV2", "vector", costs.gather)
def gather(indices: Tensor, table: Tensor) -> Tensor:
    """Rows of a table: indices [T], table [rows, D] -> [T, D]."""
    return plain.gather(indices, table)
