"""Which kernels a SuperKernel can hold. CANN decides; this table says what is known in public.

An unfusable kernel ends one SuperKernel, and the next begins after it. What is not listed is taken as fusable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from models.workload import Kernel

Fuses = Literal["always", "sometimes", "never"]


@dataclass(frozen=True)
class Unfusable:
    """Operators that do not fuse.

    Attributes:
        ops: the field's names of the operators.
        fuses: `never`, or `sometimes`: in some versions or settings.
        why: the reason.
        source: where that is from.
        why_zh: the reason in Chinese.
    """

    ops: tuple[str, ...]
    fuses: Fuses
    why: str
    source: str
    why_zh: str


UNFUSABLE: tuple[Unfusable, ...] = (
    Unfusable(("Cast",), "never", "TBE kernel", "reports of torchair users; strict-scope-check lists it", "TBE 算子"),
    Unfusable(
        ("StridedSlice", "StridedSliceV2", "StridedSliceD"),
        "never",
        "TBE kernel",
        "reports of torchair users; strict-scope-check lists it",
        "TBE 算子",
    ),
    Unfusable(
        ("Add",),
        "sometimes",
        "does not fuse in some versions of CANN",
        "reports of torchair users",
        "部分 CANN 版本不支持融合",
    ),
    Unfusable(
        ("FusedInferAttentionScore", "IncreFlashAttention"),
        "sometimes",
        "does not fuse if its tiling sinks to the device (tiling sink is on)",
        "torchair: tiling-sink kernels are excluded; the setting is not part of this configuration",
        "Tiling 下沉时不支持融合",
    ),
)
_BY_OP = {op: entry for entry in UNFUSABLE for op in entry.ops}


def fuses(kernel: Kernel) -> Fuses:
    """Whether a kernel can be part of a SuperKernel; host and peer time cannot."""
    if kernel.engine == "idle":
        return "never"
    entry = _BY_OP.get(kernel.op)
    return entry.fuses if entry is not None else "always"


def why_not(op: str) -> str:
    """Why kernels of this operator cut a SuperKernel, "" if they do not."""
    entry = _BY_OP.get(op)
    return entry.why if entry is not None else ""


def why_not_zh(op: str) -> str:
    """`why_not` in Chinese; host and peer time are of no table."""
    entry = _BY_OP.get(op)
    return entry.why_zh if entry is not None else "主机或对端耗时"


def runs(kernels: Sequence[Kernel], sometimes: bool = True) -> list[list[int]]:
    """The SuperKernels that a scope becomes.

    Args:
        kernels: of the scope, in program order.
        sometimes: whether kernels that fuse only sometimes do.

    Returns:
        Indices (`Kernel.index`) of each run of fusable kernels; a run of one kernel is no fusion.
    """
    found: list[list[int]] = [[]]
    for kernel in kernels:
        verdict = fuses(kernel)
        if verdict == "always" or (verdict == "sometimes" and sometimes):
            found[-1].append(kernel.index)
        elif found[-1]:
            found.append([])
    return [run for run in found if run]
