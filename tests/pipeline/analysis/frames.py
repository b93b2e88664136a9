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


HEADER = {
    "Step Id": "step", "Stream ID": "stream", "Name": "name", "Type": "op_type", "Accelerator Core": "core",
    "Start Time(us)": "start_us", "Duration(us)": "duration_us", "Wait Time(us)": None, "Block Dim": None,
    "Mix Block Dim": None, "Input Shapes": "input_shapes", "Input Data Types": "input_dtypes",
    "Input Formats": "input_formats", "Output Shapes": "output_shapes", "Output Data Types": "output_dtypes",
    "Output Formats": "output_formats", "aicore_time(us)": "aicore_us", "aic_mac_ratio": "mac_ratio",
    "aic_scalar_ratio": "scalar_ratio", "aic_mte1_ratio": "mte1_ratio", "aic_mte2_ratio": "mte2_ratio",
    "aic_fixpipe_ratio": "fixpipe_ratio", "aic_icache_miss_rate": None, "aiv_time(us)": "aiv_us",
    "aiv_vec_ratio": "vec_ratio", "aiv_scalar_ratio": "aiv_scalar_ratio", "aiv_mte2_ratio": "aiv_mte2_ratio",
    "aiv_mte3_ratio": "aiv_mte3_ratio", "cube_utilization(%)": "cube_utilization",
}  # fmt: skip
_BASE = 1_736_400_000_000_000


def write_csv(path: Path, kernels: Iterable[Mapping[str, Any]], columns: Mapping[str, str | None] = HEADER) -> Path:
    """A kernel_details.csv with the quirks of real ones: epochs with a tab, shapes in literal quotes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(columns)]
    for number, kernel in enumerate(kernels):
        cells = []
        for ours in columns.values():
            value = kernel.get(ours or "")
            if ours == "start_us":
                cells.append(f"{_BASE + int(value)}.{round(value % 1 * 1000) % 1000:03d}\t")
            elif ours == "name":
                cells.append(str(value or f"{kernel['op_type']}_{number}"))
            elif ours and ours.endswith("_shapes") and value is not None:
                cells.append(f'"""{value}"""')
            elif isinstance(value, float):
                cells.append(f"{value:.3f}")
            else:
                cells.append("N/A" if value is None else str(value))
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
