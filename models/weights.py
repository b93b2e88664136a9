"""Fill tiny models with seeded weights, quantise, and cut full weights into those of one die."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from models.layers import Cut, ParameterSpec
from models.ops import collectives


def fill(module: nn.Module, seed: int) -> None:
    """Seeded values that keep activations of order one and logits apart, in the order of the parameters' names."""
    generator = torch.Generator().manual_seed(seed)
    for _, weight in sorted(module.named_parameters()):
        spec: ParameterSpec = weight.spec  # type: ignore[attr-defined]
        weight.data.copy_(_values(weight, spec, generator))


def install(module: nn.Module, full: Mapping[str, Tensor]) -> None:
    """Put full weights into a model: quantised where the model is, and cut to what this process holds.

    Args:
        module: a model with real (not `meta`) parameters.
        full: weights over all dies by parameter name; names that the model does not have are left out (the other
            side of a disaggregated deployment).

    Raises:
        ValueError: weights are missing, all of them named.
    """
    full = dict(full)
    for name, weight in module.named_parameters():
        if weight.dtype is torch.int8 and name in full and full[name].dtype is not torch.int8:
            spec: ParameterSpec = weight.spec  # type: ignore[attr-defined]
            full[name], full[f"{name}_scale"] = quantise_weight(full[name], spec.input_dim)
    missing = [name for name, _ in module.named_parameters() if name not in full]
    if missing:
        raise ValueError(f"weights are missing: {', '.join(missing)}")
    for name, weight in module.named_parameters():
        weight.data.copy_(cut(full[name], weight.spec))  # type: ignore[attr-defined]


def quantise_weight(weight: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """int8 weights and float32 scales, one per output channel; `dim` is the dimension of the inputs."""
    scale = weight.float().abs().amax(dim, keepdim=True).clamp_min(1e-12) / 127
    return torch.round(weight / scale).to(torch.int8), scale.squeeze(dim)


def cut(full: Tensor, spec: ParameterSpec) -> Tensor:
    """This process's part of a full weight."""
    for one in spec.cuts:
        if one.size > 1:
            full = _cut_once(full, one, collectives.rank(one.group))
    return full


def _cut_once(full: Tensor, one: Cut, rank: int) -> Tensor:
    parts = full.split(one.parts or (full.shape[one.dim],), one.dim)
    return torch.cat([part.chunk(one.size, one.dim)[rank] for part in parts], one.dim)


def _values(weight: Tensor, spec: ParameterSpec, generator: torch.Generator) -> Tensor:
    def normal() -> Tensor:
        return torch.randn(weight.shape, generator=generator)

    if spec.kind == "norm":
        return 1 + 0.1 * normal()
    if spec.kind == "bias":
        return 0.01 * normal()
    if spec.kind == "scale":  # int8 values below have a standard deviation of 73
        return (1 + 0.1 * normal()).abs() / (73 * spec.fan_in**0.5)
    if weight.dtype is torch.int8:
        return torch.randint(-127, 128, weight.shape, generator=generator)
    return normal() / spec.fan_in**0.5
