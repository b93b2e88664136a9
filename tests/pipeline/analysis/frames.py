"""Profiles made by hand: a few kernels with the columns that a reader fills."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.profile.rows import SCHEMA, Profile

MIB = 1 << 20


def matmul(m: int, k: int, n: int, us: float, dtype: str = "BF16", **more: Any) -> dict[str, Any]:
    """A MatMul of an [m, k] activation by a [k, n] weight (INT8: QuantBatchMatmul)."""
    quant = dtype == "INT8"
    return {
        "op_type": "QuantBatchMatmulV3" if quant else "MatMulV3",
        "core": "AI_CORE",
        "duration_us": us,
        "input_shapes": f"{m},{k};{k},{n}",
        "input_dtypes": f"{dtype};{dtype}",
        "input_formats": "ND;ND",
        "output_shapes": f"{m},{n}",
        "output_dtypes": "BF16" if quant else dtype,
        "output_formats": "ND",
        "aicore_us": 0.95 * us,
        "mac_ratio": 0.1,
        "mte2_ratio": 0.9,
        **more,
    }


def vector(op_type: str, elements: int, us: float, **more: Any) -> dict[str, Any]:
    """A vector kernel that reads and writes BF16."""
    return {
        "op_type": op_type,
        "core": "AI_VECTOR_CORE",
        "duration_us": us,
        "input_shapes": f"1,{elements}",
        "input_dtypes": "BF16",
        "input_formats": "ND",
        "output_shapes": f"1,{elements}",
        "output_dtypes": "BF16",
        "output_formats": "ND",
        "aiv_us": 0.5 * us,
        "vec_ratio": 0.3,
        "aiv_mte2_ratio": 0.2,
        **more,
    }


def collective(us: float, **more: Any) -> dict[str, Any]:
    """A collective, which has no metrics and no shapes."""
    return {"op_type": "hcom_allReduce_", "core": "HCCL", "duration_us": us, **more}


def in_order(kernels: Iterable[Mapping[str, Any]], gap: float = 0.1, start: float = 0.0) -> list[dict[str, Any]]:
    """Starts for kernels that lack one: one after the other on their stream."""
    ends: dict[Any, float] = {}
    placed = []
    for kernel in kernels:
        stream = kernel.get("stream", "2")
        begin = kernel.get("start_us", ends.get(stream, start - gap) + gap)
        ends[stream] = begin + kernel["duration_us"]
        placed.append({"stream": stream, **kernel, "start_us": begin})
    return placed


def profile(kernels: Iterable[Mapping[str, Any]], kind: Any = "pipe_utilization", **more: Any) -> Profile:
    """A profile of these kernels, in this order."""
    rows = [{"line": n + 2, "name": f"{k.get('op_type')}_{n}", "device": 0, **k} for n, k in enumerate(kernels)]
    columns = {name: [row.get(name) for row in rows] for name in SCHEMA}
    frame = pl.DataFrame(columns, schema=dict(SCHEMA))
    fields = {
        "source": Path("kernel_details.csv"),
        "rank": None,
        "device": 0,
        "layout": "kernel_details",
        "base_us": 0,
        "problems": (),
        "has_shapes": frame["input_shapes"].null_count() < frame.height,
        "has_ratios": frame["mte2_ratio"].null_count() < frame.height,
    }
    return Profile(kind=kind, kernels=frame, **{**fields, **more})


def steps(one: list[dict[str, Any]], count: int, pause: float = 20.0, named: bool = True) -> list[dict[str, Any]]:
    """The same step several times, one after the other, with a pause between them."""
    length = max(k["start_us"] + k["duration_us"] for k in one) + pause
    return [
        {**k, "start_us": k["start_us"] + n * length, **({"step": n + 3} if named else {})}
        for n in range(count)
        for k in one
    ]
