"""What an aten op outside the marked kernels is on the NPU: its name, engine, FLOPs, and which tensors it reads.

Views cost nothing (they share their input's storage). Constants (`zeros`, `arange`, `zeros_like`, ...) cost nothing
either: a static graph folds them when it is compiled. Everything else is one kernel.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from models.workload import Engine

# Operator names as profiles on the NPU show them; the rest is the aten name in CamelCase.
NAMES = {
    "_grouped_mm": "GroupedMatmul",
    "_log_softmax": "LogSoftmaxV2",
    "_safe_softmax": "SoftmaxV2",
    "_softmax": "SoftmaxV2",
    "_to_copy": "Cast",
    "addmm": "MatMul",
    "argmax": "ArgMaxV2",
    "baddbmm": "BatchMatMul",
    "bmm": "BatchMatMul",
    "cat": "ConcatD",
    "clone": "TensorMove",
    "copy": "TensorMove",
    "cumsum": "Cumsum",
    "div": "RealDiv",
    "embedding": "GatherV2",
    "eq": "Equal",
    "gather": "GatherElements",
    "ge": "GreaterEqual",
    "gt": "Greater",
    "index_copy": "InplaceUpdate",
    "index_put": "IndexPutV2",
    "index_select": "GatherV2",
    "le": "LessEqual",
    "lt": "Less",
    "masked_fill": "MaskedFill",
    "mean": "ReduceMean",
    "mm": "MatMul",
    "native_layer_norm": "LayerNorm",
    "ne": "NotEqual",
    "remainder": "FloorMod",
    "scatter": "ScatterElements",
    "silu": "Swish",
    "sum": "ReduceSum",
    "topk": "TopKV2",
    "where": "SelectV2",
}
# Tensor arguments of these give only shape, dtype and device.
SHAPE_ONLY = frozenset(
    [f"{kind}_like" for kind in ("empty", "zeros", "ones", "full", "rand", "randn")]
    + [f"new_{kind}" for kind in ("empty", "empty_strided", "zeros", "ones", "full")]
)
# These replace what they write without reading it.
OVERWRITES = frozenset(("copy_", "fill_", "zero_", "set_"))
# First argument: a table of which only the rows named by the indices are read.
LOOKUPS = frozenset(("embedding", "index_select", "gather", "index"))


@dataclass(frozen=True)
class Glue:
    """The static part of an aten op.

    Attributes:
        name: operator name on the NPU.
        engine: `cube` if PyTorch knows its FLOPs, else `vector`.
        written: (position, name) of the arguments that it writes in place.
        reads_written: whether it also reads these.
        constant: it reads no data at all, only shapes.
        lookup: its first argument is a table.
        data_dependent: its result depends on values in a way that `meta` cannot answer.
        composite: it is made of other aten ops (which inference mode shows undecomposed).
    """

    name: str
    engine: Engine
    written: tuple[tuple[int, str], ...]
    reads_written: bool
    constant: bool
    lookup: bool
    data_dependent: bool
    composite: bool


@cache
def describe(op: Any) -> Glue:
    """The static part of one `torch._ops.OpOverload`."""
    schema = op._schema
    base = schema.name.split("::")[-1]
    stem = base if base.startswith("_") else base.rstrip("_")
    written = tuple(
        (i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    )
    takes_tensors = any("Tensor" in str(a.type) for a in schema.arguments)
    out_variant = any(name == "out" for _, name in written)
    camel = "".join(part[:1].upper() + part[1:] for part in stem.split("_") if part)
    return Glue(
        name=NAMES.get(stem, camel),
        engine="cube" if op._overloadpacket in flop_registry else "vector",
        written=written,
        reads_written=bool(written) and not out_variant and base not in OVERWRITES,
        constant=not takes_tensors or base in SHAPE_ONLY,
        lookup=base in LOOKUPS,
        data_dependent=torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags,
        composite=torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"),
    )


def flops_of(op: Any, args: tuple, kwargs: dict, out: Any) -> float:
    """FLOPs by PyTorch's own counter (a multiply-add counts two); 0 for ops that it does not know."""
    counter = flop_registry.get(op._overloadpacket)
    return float(counter(*args, **kwargs, out_val=out)) if counter is not None else 0.0


def flops_dtype_of(tensors: list[torch.Tensor]) -> str:
    """Which peak applies: `fp32`, `int8`, else `bf16`, by the first tensor."""
    dtype = tensors[0].dtype if tensors else torch.bfloat16
    return {torch.float32: "fp32", torch.int8: "int8"}.get(dtype, "bf16")
