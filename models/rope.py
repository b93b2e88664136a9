"""Rotary frequencies, plain or stretched to a longer context by YaRN (arXiv 2309.00071)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class YarnScaling:
    """`rope_scaling` of a checkpoint's config.json.

    Attributes:
        type: only YaRN.
        factor: how many times longer the context is than in pre-training.
        original_max_position_embeddings: positions of pre-training.
        beta_fast, beta_slow: rotations over the original context above which a dimension keeps its frequency, and
            below which its frequency is divided by `factor`; a ramp in between.
        mscale, mscale_all_dim: temperature of rotated parts and of all scores; 0 leaves it out.
    """

    factor: float
    original_max_position_embeddings: int
    type: Literal["yarn"] = "yarn"
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0

    @property
    def table_factor(self) -> float:
        """Factor of cos and sin."""
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    @property
    def score_factor(self) -> float:
        """Factor of the attention scores."""
        return self._temperature(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _temperature(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0


def inverse_frequencies(dim: int, theta: float, scaling: YarnScaling | None = None) -> Tensor:
    """Angle per position of each of the dim / 2 pairs, float32."""
    plain = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    if scaling is None:
        return plain
    first = max(math.floor(_pair_with(scaling.beta_fast, dim, theta, scaling)), 0)
    last = min(math.ceil(_pair_with(scaling.beta_slow, dim, theta, scaling)), dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - first) / max(last - first, 0.001)
    slow = ramp.clamp(0, 1)  # 0: keeps its frequency, 1: is divided
    return plain / scaling.factor * slow + plain * (1 - slow)


def _pair_with(rotations: float, dim: int, theta: float, scaling: YarnScaling) -> float:
    """The pair, as a real number, that rotates so often over the original context."""
    length = scaling.original_max_position_embeddings
    return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))
