"""What a profiler file is read into: one table of kernels per rank and device, with fixed columns.

Everything downstream (roofline, windows, replay, compare) reads these tables and never a file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import polars as pl

from models.problems import Problem

# Name and type of every column of `Profile.kernels`, in order. A column that the file lacks is all null.
SCHEMA: Mapping[str, pl.DataType] = MappingProxyType(
    {
        "line": pl.Int64(),
        "name": pl.String(),
        "op_type": pl.String(),
        "core": pl.String(),
        "device": pl.Int64(),
        "stream": pl.String(),
        "step": pl.Int64(),
        "start_us": pl.Float64(),
        "duration_us": pl.Float64(),
        "wait_us": pl.Float64(),
        "block_dim": pl.Int64(),
        "mix_block_dim": pl.Int64(),
        "input_shapes": pl.String(),
        "input_dtypes": pl.String(),
        "input_formats": pl.String(),
        "output_shapes": pl.String(),
        "output_dtypes": pl.String(),
        "output_formats": pl.String(),
        "aicore_us": pl.Float64(),
        "aiv_us": pl.Float64(),
        "mac_ratio": pl.Float64(),
        "mte1_ratio": pl.Float64(),
        "mte2_ratio": pl.Float64(),
        "fixpipe_ratio": pl.Float64(),
        "scalar_ratio": pl.Float64(),
        "icache_miss_rate": pl.Float64(),
        "vec_ratio": pl.Float64(),
        "aiv_scalar_ratio": pl.Float64(),
        "aiv_mte2_ratio": pl.Float64(),
        "aiv_mte3_ratio": pl.Float64(),
        "cube_utilization": pl.Float64(),
    }
)

# Kinds of a file, by its columns: what was captured, and so what can be said about a kernel.
Kind = Literal[
    "level0",
    "pipe_utilization",
    "arithmetic_utilization",
    "memory",
    "memory_l0",
    "memory_ub",
    "l2_cache",
    "resource_conflict",
    "other_metrics",
    "no_metrics",
]

CAPTURE = (
    "capture again with torch_npu.profiler: experimental_config=torch_npu.profiler._ExperimentalConfig("
    "profiler_level=torch_npu.profiler.ProfilerLevel.Level1, "
    "aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization), record_shapes=True"
)

PARSE = (
    "export what was captured: torch_npu.profiler.profiler.analyse(RUN_FOLDER), "
    "or msprof --export=on --output=PROF_FOLDER"
)


@dataclass(frozen=True, eq=False)
class Profile:
    """Kernels of one device in one run, as the profiler measured them.

    Attributes:
        source: the first file read.
        rank: rank of the run, from profiler_info or the folder's name; None if nothing says it.
        device: device id in the file; None if the file does not say it.
        kind: which metrics were captured (`Kind`).
        layout: which tool's columns.
        base_us: integer microseconds since the epoch that were subtracted from every start: a float64 holds an
            epoch in microseconds only to about 0.25 us.
        kernels: one row per kernel, in file order, columns as `SCHEMA`. `wait_us` is the file's: the time since
            the end of the kernel before it in start order over *all* streams of the device, so it is neither
            idle time nor a wait of its stream.
        problems: what could not be read or believed, with lines.
        has_shapes: some kernel has input shapes.
        has_ratios: some kernel has pipe ratios (mte2 among them).
        files: every file the rows come from: more than one for a sliced op_summary.
        first_rows: index of the first row of each of `files`.
        where: where under the searched folder it lies, if another profile has the same rank and device; else "".
    """

    source: Path
    rank: int | None
    device: int | None
    kind: Kind
    layout: Literal["kernel_details", "op_summary"]
    base_us: int
    kernels: pl.DataFrame
    problems: tuple[Problem, ...]
    has_shapes: bool
    has_ratios: bool
    files: tuple[Path, ...] = ()
    first_rows: tuple[int, ...] = ()
    where: str = ""

    @property
    def label(self) -> str:
        """`rank 3, device 1`, as far as known, else the file's name; with its folder where that is not unique."""
        parts = [
            f"{word} {value}" for word, value in (("rank", self.rank), ("device", self.device)) if value is not None
        ]
        name = ", ".join(parts) or self.source.name
        return f"{name} ({self.where})" if self.where else name

    def place(self, row: int) -> str:
        """`file:line` of a row of `kernels`."""
        file = self.source
        for path, first in zip(self.files, self.first_rows, strict=True):
            if first <= row:
                file = path
        return f"{file}:{self.kernels['line'][row]}"
