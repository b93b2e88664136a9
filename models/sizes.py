"""Theoretical sizes of weights to prefetch, by the formulas of the specification, with its integer order."""

import math
from collections.abc import Sequence
from typing import Literal

Quant = Literal["w16a16", "w8a8"]

DTYPE_BYTES = {"int8": 1, "bf16": 2, "fp16": 2, "fp32": 4}


def theoretical_size(shape: Sequence[int], dtype: str) -> int:
    """Bytes of a whole local weight: the product of its dimensions times the bytes of its type.

    Args:
        shape: local dimensions, after sharding.
        dtype: key of `DTYPE_BYTES`.
    """
    return math.prod(shape) * DTYPE_BYTES[dtype]


def gmm1_prefetch_size(
    hidden_size: int, intermediate_size: int, quant: Quant, moe_tp_size: int, experts_per_rank: int
) -> int:
    """Bytes to prefetch of the first expert stack (gate and up): half of it, which is the specification's 50 %."""
    return hidden_size * intermediate_size * 2 * _weight_bytes(quant) // moe_tp_size * experts_per_rank // 2


def gmm2_prefetch_size(
    hidden_size: int, intermediate_size: int, quant: Quant, moe_tp_size: int, experts_per_rank: int
) -> int:
    """Bytes to prefetch of the second expert stack (down): all of it."""
    return hidden_size * intermediate_size * _weight_bytes(quant) // moe_tp_size * experts_per_rank


def _weight_bytes(quant: Quant) -> int:
    return 1 if quant == "w8a8" else 2
