"""Leaf layers: modules that own weights and call kernels, and no other modules."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from models import ops
from models.ops import collectives
from models.rope import YarnScaling, inverse_frequencies

Kind = Literal["weight", "norm", "scale", "bias"]


@dataclass(frozen=True)
class Cut:
    """One dimension of a parameter is shared by a group of dies.

    Attributes:
        dim: the dimension.
        group, size: name of the group (`dense_tp`, `moe_ep`, ...) and its dies.
        parts: full sizes of matrices stacked along `dim`, each cut by itself (gate and up); () for one matrix.
    """

    dim: int
    group: str
    size: int
    parts: tuple[int, ...] = ()


@dataclass(frozen=True)
class ParameterSpec:
    """How a parameter is filled in a tiny model (`kind`, and inputs per output `fan_in`), how it is cut, and which
    dimension the inputs are (quantised weights have one scale per output)."""

    kind: Kind
    fan_in: int
    cuts: tuple[Cut, ...]
    input_dim: int = 1


def parameter(
    *shape: int,
    dtype: torch.dtype,
    kind: Kind = "weight",
    fan_in: int = 1,
    cuts: tuple[Cut, ...] = (),
    input_dim: int = 1,
) -> nn.Parameter:
    """An empty parameter: the `shape` over all dies, less what the cuts give to others."""
    local = list(shape)
    for cut in cuts:
        local[cut.dim] //= cut.size
    result = nn.Parameter(torch.empty(local, dtype=dtype), requires_grad=False)
    result.spec = ParameterSpec(kind, fan_in, cuts, input_dim)  # type: ignore[attr-defined]
    return result


class Linear(nn.Module):
    """y = x W^T, in bf16 (MatMul) or int8 (QuantBatchMatmul), its weight possibly cut over a group.

    Attributes:
        weight: [out, in] of this die; int8 if quantised.
        weight_scale: float32 [out] of this die, one per output channel; only if quantised.
    """

    def __init__(
        self,
        config: Any,
        in_features: int,
        out_features: int,
        *,
        quantised: bool = False,
        dequantise: bool = True,
        dtype: torch.dtype | None = None,
        column: tuple[str, int] = ("", 1),
        row: tuple[str, int] = ("", 1),
        parts: tuple[int, ...] = (),
    ) -> None:
        """Args:
        config: the model's configuration.
        quantised: int8 weight and int8 inputs.
        dequantise: False leaves int32 sums to a fused kernel that follows.
        dtype: of the weight, the model's by default.
        column, row: (group, size) that shares the outputs or the inputs.
        parts: sizes of the matrices merged along the outputs; each is cut by itself.
        """
        super().__init__()
        self.dequantise = dequantise
        self.dtype = config.dtype
        outputs = Cut(0, *column, parts)
        self.weight = parameter(
            out_features,
            in_features,
            dtype=torch.int8 if quantised else dtype or config.dtype,
            fan_in=in_features,
            cuts=(outputs, Cut(1, *row)),
        )
        if quantised:
            self.weight_scale = parameter(
                out_features, dtype=torch.float32, kind="scale", fan_in=in_features, cuts=(outputs,)
            )
        else:
            self.register_parameter("weight_scale", None)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """x [T, in] (int8 with its `scale` [T] if quantised) -> [T, out]."""
        if self.weight_scale is None:
            return ops.matmul(x, self.weight)
        if not self.dequantise:
            return ops.quant_matmul(x, self.weight, self.weight_scale)
        return ops.quant_matmul(x, self.weight, self.weight_scale, scale, self.dtype)


class InputMajorLinear(nn.Module):
    """A projection whose weight, stored [in, out], goes into a fused kernel; the module itself is never called.

    Attributes:
        weight: [in, out] of this die; int8 if quantised.
        weight_scale: float32 [out] of this die, one per output channel; only if quantised.
    """

    def __init__(
        self,
        config: Any,
        in_features: int,
        out_features: int,
        column: tuple[str, int] = ("", 1),
        quantised: bool = False,
    ) -> None:
        super().__init__()
        self.weight = parameter(
            in_features,
            out_features,
            dtype=torch.int8 if quantised else config.dtype,
            fan_in=in_features,
            cuts=(Cut(1, *column),),
            input_dim=0,
        )
        if quantised:
            self.weight_scale = parameter(
                out_features, dtype=torch.float32, kind="scale", fan_in=in_features, cuts=(Cut(0, *column),)
            )
        else:
            self.register_parameter("weight_scale", None)


class RMSNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, config: Any, size: int, epsilon: float | None = None) -> None:
        super().__init__()
        self.weight = parameter(size, dtype=config.dtype, kind="norm")
        self.epsilon = config.rms_norm_eps if epsilon is None else epsilon

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.epsilon)


class AddRMSNorm(RMSNorm):
    """Adds the residual and normalises, in one kernel."""

    def forward(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The norm of x + residual and the sum itself, both [T, H]; without a residual the sum is x."""
        if residual is None:
            return ops.rms_norm(x, self.weight, self.epsilon), x
        return ops.add_rms_norm(x, residual, self.weight, self.epsilon)


class Embedding(nn.Module):
    """Token embeddings, their rows possibly cut over a group; `local_rows` gives the partial result of this die."""

    def __init__(self, config: Any, rows: int, size: int, group: tuple[str, int] = ("", 1)) -> None:
        super().__init__()
        self.group, self.group_size = group
        self.weight = parameter(rows, size, dtype=config.dtype, cuts=(Cut(0, *group),))

    def forward(self, input_ids: Tensor) -> Tensor:
        """[T] -> [T, H]; with a group, rows of other dies are zero and the caller adds up."""
        if self.group_size == 1:
            return ops.gather(input_ids, self.weight)
        rows = self.weight.shape[0]
        if collectives.is_loopback(self.group):  # these rows stand for those of every die
            local = input_ids % rows
        else:
            local = input_ids - collectives.rank(self.group) * rows
        here = torch.logical_and(local >= 0, local < rows)
        hidden_states = ops.gather(torch.where(here, local, 0), self.weight)
        return torch.where(here.unsqueeze(-1), hidden_states, 0)


class RotaryEmbedding(nn.Module):
    """cos and sin of every position, looked up per step."""

    def __init__(self, config: Any, dim: int, scaling: YarnScaling | None = None) -> None:
        super().__init__()
        inverse = inverse_frequencies(dim, config.rope_theta, scaling)
        angles = torch.outer(torch.arange(config.max_position_embeddings, dtype=torch.float32), inverse)
        angles = torch.cat([angles, angles], -1)
        self.cos: Tensor
        self.sin: Tensor
        factor = 1.0 if scaling is None else scaling.table_factor
        self.register_buffer("cos", (angles.cos() * factor).to(config.dtype), persistent=False)
        self.register_buffer("sin", (angles.sin() * factor).to(config.dtype), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[T] -> cos, sin [T, dim]."""
        return ops.gather(positions, self.cos), ops.gather(positions, self.sin)
