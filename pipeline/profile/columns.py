"""Columns of the profiler's CSV files: their many names, and what was captured, told by them alone.

File names get changed by wrappers, and torch_npu and msprof name the same columns differently, so a file is
recognised by its header.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pipeline.profile.rows import Kind

# Our column: its names in files, normalised by `normalise`. The first one present counts.
NAMES = MappingProxyType(
    {
        "name": ("name", "op_name"),
        "op_type": ("type", "op_type"),
        "core": ("accelerator_core", "task_type"),
        "device": ("device_id",),
        "stream": ("stream_id",),
        "step": ("step_id",),
        "start_us": ("start_time_us", "task_start_time_us"),
        "duration_us": ("duration_us", "task_duration_us"),
        "wait_us": ("wait_time_us", "task_wait_time_us"),
        "block_dim": ("block_dim", "block_num"),
        "mix_block_dim": ("mix_block_dim", "mix_block_num"),
        "input_shapes": ("input_shapes",),
        "input_dtypes": ("input_data_types",),
        "input_formats": ("input_formats",),
        "output_shapes": ("output_shapes",),
        "output_dtypes": ("output_data_types",),
        "output_formats": ("output_formats",),
        "aicore_us": ("aicore_time_us", "aic_time_us"),
        "aiv_us": ("aiv_time_us",),
        # Prefixed by the core since 910B; 310P and 910A have one kind of core and no prefix.
        "mac_ratio": ("aic_mac_ratio", "aic_cube_ratio", "mac_ratio", "cube_ratio"),
        "mte1_ratio": ("aic_mte1_ratio", "mte1_ratio"),
        "mte2_ratio": ("aic_mte2_ratio", "mte2_ratio"),
        "fixpipe_ratio": ("aic_fixpipe_ratio", "fixpipe_ratio"),
        "scalar_ratio": ("aic_scalar_ratio", "scalar_ratio"),
        "icache_miss_rate": ("aic_icache_miss_rate", "icache_miss_rate"),
        "vec_ratio": ("aiv_vec_ratio", "vec_ratio"),
        "aiv_scalar_ratio": ("aiv_scalar_ratio",),
        "aiv_mte2_ratio": ("aiv_mte2_ratio",),
        "aiv_mte3_ratio": ("aiv_mte3_ratio", "mte3_ratio"),
        "cube_utilization": ("cube_utilization",),
    }
)
REQUIRED = MappingProxyType({"name": "Name", "start_us": "Start Time(us)", "duration_us": "Duration(us)"})
RATIOS = tuple(name for name in NAMES if name.endswith("_ratio"))
# A metric group is told by a column that only it has; looked for in this order.
MARKS: tuple[tuple[Kind, str], ...] = (
    ("arithmetic_utilization", r"mac_(fp16|int8)_ratio|vec_fp(32|16)_ratio|cube_fops|vector_fops"),
    ("resource_conflict", r"(bankgroup|bank|resc)_cflt_ratio"),
    ("l2_cache", r"read_cache_hit|write_cache_hit|cache_miss_allocate"),
    ("memory_l0", r"l0[abc]_(read|write)_bw"),
    ("memory_ub", r"ub_(read|write)_bw_(vector|scalar)"),
    ("memory", r"(main_mem|l1|l2|ub)_(read|write)_bw"),
)


@dataclass(frozen=True)
class Layout:
    """How a file's columns map to ours.

    Attributes:
        tool: whose names they are.
        kind: what was captured.
        fields: number of columns of the file.
        index: our column -> position in the file.
        twice: names that the header has more than once; the first counts.
    """

    tool: Literal["kernel_details", "op_summary"]
    kind: Kind
    fields: int
    index: dict[str, int]
    twice: tuple[str, ...]


def normalise(name: str) -> str:
    """`Task Start Time(us)` -> `task_start_time_us`; a BOM, quotes, tabs and units in brackets don't matter."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def recognise(header: Sequence[str]) -> Layout | None:
    """The layout of a kernel table with this header, or None if it is not one."""
    names = [normalise(name) for name in header]
    where = {name: at for at, name in reversed(list(enumerate(names)))}
    index = {ours: where[n] for ours, theirs in NAMES.items() for n in [_first(theirs, where)] if n is not None}
    if any(name not in index for name in REQUIRED):
        return None
    twice = tuple(header[at] for at, name in enumerate(names) if name and where[name] != at)
    tool: Literal["kernel_details", "op_summary"] = "op_summary" if "task_start_time_us" in where else "kernel_details"
    return Layout(tool, kind_of(names), len(header), index, twice)


def missing(header: Sequence[str]) -> list[str]:
    """What a kernel table must have and this header lacks, by the names that torch_npu gives."""
    names = {normalise(name) for name in header}
    return [title for name, title in REQUIRED.items() if not names & set(NAMES[name])]


def kind_of(names: Iterable[str]) -> Kind:
    """What was captured, from normalised column names."""
    names = set(names)
    if "input_shapes" not in names:
        return "level0"
    if any(name in names for name in NAMES["mte2_ratio"] + NAMES["aiv_mte2_ratio"]):
        return "pipe_utilization"
    for kind, mark in MARKS:
        if any(re.search(mark, name) for name in names):
            return kind
    return "other_metrics" if any(name.endswith("_ratio") for name in names) else "no_metrics"


def _first(theirs: Sequence[str], where: dict[str, int]) -> str | None:
    return next((name for name in theirs if name in where), None)
