"""Bytes and FLOPs of one kernel from the shapes and types of its tensors. Exact where shapes say it, else a range.

What shapes cannot say: which experts of a stack had tokens (a range), how long sequences are (attention: unknown).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.analysis.operators import Kind

if TYPE_CHECKING:
    from pipeline.profile.tensors import TensorSpec

# Weights that one MLAProlog reads: W_DQ, W_UQ_QR, W_UK, W_DKV_KR stand after the activation.
_PROLOG_WEIGHTS = slice(1, 5)
_LARGE = 1 << 18  # elements that a projection has at least
# Values of 4 bits that are stored in one element of a wider type.
_PACKED = {"INT32": 8, "INT8": 2}
_COMPUTE = {"FLOAT": "fp32", "FLOAT32": "fp32", "BF16": "bf16", "FLOAT16": "bf16", "INT8": "int8", "INT4": "int8"}


@dataclass(frozen=True)
class Traffic:
    """What one kernel moves and computes.

    Attributes:
        weight_bytes: bytes of its weights as stored: the theoretical size of a prefetch. 0 if it has none.
        read_low, read, read_high: bytes of the weights that it reads; a range for expert stacks.
        other_bytes: activations read and written.
        flops: operations, a multiply-add counts as two; None where they do not follow from shapes.
        compute: `bf16`, `int8` or `fp32`: which peak applies.
        rows: rows of the activation that meet each weight; None if there is no weight.
        experts: experts in the stack, 0 if it is none.
        known: bytes are known.
        issue: `""`, or why the shapes give no bytes, or that they contradict each other (`inconsistent: ...`).
    """

    weight_bytes: float = 0.0
    read_low: float = 0.0
    read: float = 0.0
    read_high: float = 0.0
    other_bytes: float = 0.0
    flops: float | None = None
    compute: str = "bf16"
    rows: int | None = None
    experts: int = 0
    known: bool = True
    issue: str = ""

    @property
    def inconsistent(self) -> bool:
        """Whether the shapes of this kernel contradict each other: the file was edited, or we misread the operator."""
        return self.issue.startswith("inconsistent")


def traffic(kind: Kind, inputs: Sequence["TensorSpec | None"], outputs: Sequence["TensorSpec | None"]) -> Traffic:
    """Bytes and FLOPs of a kernel.

    Args:
        kind: of its operator.
        inputs, outputs: its tensors by position; None is an absent one.
    """
    if kind.traffic == "unknown":
        return Traffic(known=False, issue=f"bytes of {kind.name.replace('_', ' ')} kernels do not follow from shapes")
    if not any(inputs) and not any(outputs):
        return Traffic(known=False, issue="no shapes")
    strange = next((t.dtype for t in (*inputs, *outputs) if t and t.stored_bytes is None), None)
    if strange is not None:
        return Traffic(known=False, issue=f"bytes of type {strange or '(none given)'} are not known")
    if kind.traffic == "attention":
        return Traffic(known=False, issue="depends on sequence lengths, which the profile does not have")
    if kind.traffic in ("matmul", "grouped", "mla_prolog"):
        rule = {"matmul": _matmul, "grouped": _grouped, "mla_prolog": _mla_prolog}[kind.traffic]
        return rule(inputs, outputs)
    every = _bytes([*inputs, *outputs])
    if kind.traffic == "gather":  # only the rows that are asked for
        return Traffic(other_bytes=2 * _bytes(outputs) + _bytes(inputs[1:]))
    if kind.traffic == "in_place":  # the cache itself is only touched where it is written
        whole = {t.shape for t in outputs if t}
        small = [t for t in inputs if t and t.shape not in whole]
        return Traffic(other_bytes=2 * _bytes(small) if small else every)
    return Traffic(other_bytes=every)


def contract(x: "TensorSpec", weight: "TensorSpec", out: "TensorSpec") -> tuple[float, int, int] | None:
    """Which dimensions a MatMul sums over.

    Both orientations of either operand, batches, an output with transposed or merged batches, padding of FRACTAL_NZ
    storage and packed 4-bit weights are tried; sizes decide.

    Returns:
        (rows over all batches, K, N), or None where no reading makes the three shapes agree.
    """
    a, w, o = x.logical, weight.logical, out.logical
    if len(w) < 2 or not a or not o or 0 in (*a, *w, *o):
        return None
    batch = math.prod(w[:-2])
    packed = _PACKED.get(weight.dtype, 1)
    padded = a != x.shape or o != out.shape  # sizes of activations are rounded up: only dimensions can be compared
    for k in dict.fromkeys((a[-1], *(a[-2:-1]))):
        rows = math.prod(a) / k
        for kw, nw in ((w[-2], w[-1]), (w[-1], w[-2])):
            for kf, nf in dict.fromkeys(((1, 1), (packed, 1), (1, packed))):
                if not _same(k, kw * kf, w != weight.shape):
                    continue
                for total in dict.fromkeys((rows, rows * batch)):
                    n = o[-1] if padded else math.prod(o) / total
                    if n == int(n) and _same(int(n), nw * nf, w != weight.shape or padded):
                        return total, k, int(n)
    return None


def _same(size: int, other: int, padded: bool) -> bool:
    """Equal, or equal after rounding up to a block of the storage (16, or 32 or 64 for narrow types)."""
    if size == other:
        return True
    return padded and any(-(-size // block) * block == other for block in (8, 16, 32, 64))


def _matmul(inputs: Sequence["TensorSpec | None"], outputs: Sequence["TensorSpec | None"]) -> Traffic:
    x, weight, out = _at(inputs, 0), _at(inputs, 1), _at(outputs, 0)
    if x is None or weight is None or out is None:
        return Traffic(known=False, issue="no shapes")
    found = contract(x, weight, out)
    if found is None:
        shapes = " by ".join("x".join(map(str, t.shape)) for t in (x, weight))
        return Traffic(known=False, issue=f"inconsistent: no reading of {shapes} gives {'x'.join(map(str, out.shape))}")
    total, k, n = found
    printed = _bytes([weight])
    # A weight is never INT32: 4-bit values, whose number the shape may count instead of that of their containers.
    whole = weight.dtype == "INT32" and math.prod(weight.logical[-2:]) == k * n
    stored = printed / _PACKED["INT32"] if whole else printed
    batch = math.prod(weight.logical[:-2])
    return Traffic(
        weight_bytes=stored,
        read_low=stored,
        read=stored,
        read_high=stored,
        other_bytes=_bytes([*inputs, *outputs]) - printed,
        flops=2.0 * total * k * n,
        compute=_compute(x),
        rows=max(1, round(total / batch)),
    )


def _grouped(inputs: Sequence["TensorSpec | None"], outputs: Sequence["TensorSpec | None"]) -> Traffic:
    x, weight = _at(inputs, 0), _at(inputs, 1)
    if x is None or weight is None or not x.logical:
        return Traffic(known=False, issue="no shapes")
    listed = _weight_list(inputs) if len(weight.logical) == 2 else 1
    if len(weight.logical) == 2 and listed == 1:
        return _matmul(inputs, outputs)
    if len(weight.logical) not in (2, 3):
        return Traffic(known=False, issue=f"inconsistent: an expert stack of {len(weight.logical)} dimensions")
    experts, first, second = (listed, *weight.logical)[-3:]
    k, packed = x.logical[-1], _PACKED.get(weight.dtype, 1)
    padded = weight.logical != weight.shape
    sides = [b for a, b in ((first, second), (second, first)) if _same(k, a, padded) or _same(k, a * packed, padded)]
    if not sides:
        shapes = " by ".join("x".join(map(str, t.shape)) for t in (x, weight))
        return Traffic(known=False, issue=f"inconsistent: K disagrees between the inputs, {shapes}")
    out = _at(outputs, 0)
    width = out.logical[-1] if out is not None and out.logical else 0
    # The output has N columns; half of them where SwiGLU is fused; more than are stored where 4 bits are packed.
    fits = [n * f for f in (1, packed) for n in sides if n * f == width] or [n for n in sides if n == 2 * width]
    n = (fits or sides)[0]
    rows = math.prod(x.logical) // k
    stored = _bytes([weight]) * listed
    # Equal routing leaves (1 - 1/E)^rows of the experts without a token.
    share = 1.0 - (1.0 - 1.0 / experts) ** rows if experts > 1 else 1.0
    return Traffic(
        weight_bytes=stored,
        read_low=stored * share,
        read=stored * share,
        read_high=stored,
        other_bytes=_bytes([*inputs, *outputs]) - stored,
        flops=2.0 * rows * k * n,
        compute=_compute(x),
        rows=max(1, rows),
        experts=experts,
    )


def _weight_list(inputs: Sequence["TensorSpec | None"]) -> int:
    """Experts of a GroupedMatmul whose weights are a list of matrices: equal tensors one after the other."""
    count = 1
    while count + 1 < len(inputs) and inputs[count + 1] == inputs[1]:
        count += 1
    return count


def _mla_prolog(inputs: Sequence["TensorSpec | None"], outputs: Sequence["TensorSpec | None"]) -> Traffic:
    x = _at(inputs, 0)
    # The cache is updated in place: its tensors are among inputs and outputs, and only rows of it are written.
    caches = {t.shape for t in outputs if t} & {t.shape for t in inputs if t}
    weights = [t for t in inputs[_PROLOG_WEIGHTS] if t is not None and len(t.shape) > 1]
    if len(weights) < 4:  # MlaPreprocess, whose projections stand among scales and norms
        weights = [t for t in inputs[1:] if t and len(t.shape) > 1 and t.elements >= _LARGE and t.shape not in caches]
    if x is None or len(weights) < 2 or not x.logical:
        return Traffic(known=False, issue="no shapes of the four projections")
    rows = math.prod(x.logical) // max(1, x.logical[-1])
    stored = _bytes(weights)
    elements = sum(math.prod(w.logical) for w in weights)
    small = [t for t in (*inputs, *outputs) if t and t not in weights and t.shape not in caches]
    return Traffic(
        weight_bytes=stored,
        read_low=stored,
        read=stored,
        read_high=stored,
        other_bytes=_bytes(small),
        flops=2.0 * rows * elements,
        compute=_compute(weights[0] if weights[0].dtype == "INT8" else x),
        rows=max(1, rows),
    )


def _compute(x: "TensorSpec") -> str:
    """Which peak applies: 8-bit floats run at the rate of INT8."""
    return _COMPUTE.get(x.dtype, "int8" if x.dtype.startswith(("FLOAT8", "FLOAT4", "HIFLOAT8")) else "bf16")


def _at(tensors: Sequence["TensorSpec | None"], index: int) -> "TensorSpec | None":
    return tensors[index] if index < len(tensors) else None


def _bytes(tensors: Sequence["TensorSpec | None"]) -> float:
    return float(sum(t.stored_bytes or 0 for t in tensors if t))
