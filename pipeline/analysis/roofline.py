"""The roofline: bytes and FLOPs per unique signature, rates and a class with its reason per kernel.

A kernel is memory-bound where its bytes at the bandwidth that streaming kernels reach take longer than its FLOPs at the
peak, whatever the load pipe says: `aic_mte2_ratio` is how busy that pipe is, from HBM or L2, and no bandwidth. The
ratios then agree or disagree with the shapes, and decide alone where shapes say nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.analysis.operators import Limits, OperatorTable
from pipeline.analysis.traffic import Traffic, traffic

if TYPE_CHECKING:
    import polars as pl

    from pipeline.simulator.parameters import Parameters

CLASSES = ("memory", "compute", "vector", "scalar", "launch", "communication", "unknown")
# What decides bytes and FLOPs of a kernel, and nothing else does.
SIGNATURE = (
    "op_type", "core", "input_shapes", "input_dtypes", "input_formats",
    "output_shapes", "output_dtypes", "output_formats",
)  # fmt: skip
# Pipes, the column of their ratio, and the cores whose time the ratio is a share of.
PIPES = {
    "mac": ("mac_ratio", "aicore_us"),
    "mte1": ("mte1_ratio", "aicore_us"),
    "mte2": ("mte2_ratio", "aicore_us"),
    "fixpipe": ("fixpipe_ratio", "aicore_us"),
    "scalar": ("scalar_ratio", "aicore_us"),
    "vec": ("vec_ratio", "aiv_us"),
    "aiv_mte2": ("aiv_mte2_ratio", "aiv_us"),
    "aiv_mte3": ("aiv_mte3_ratio", "aiv_us"),
    "aiv_scalar": ("aiv_scalar_ratio", "aiv_us"),
}
_SHORTEST = 1e-3  # us: profilers count nanoseconds; less is no time that a rate could be of
_LOADS = ("mte2", "aiv_mte2", "aiv_mte3")
_SCALARS = ("scalar", "aiv_scalar")
# Columns that the roofline adds to kernels (or to medians of them).
RATES = ("gb_s", "tflops", "hbm_share", "peak_share", "busiest", "class", "reason", "agrees")
METRICS = tuple(dict.fromkeys([*(c for c, _ in PIPES.values()), "aicore_us", "aiv_us", "cube_utilization"]))


@dataclass(frozen=True)
class Signatures:
    """The unique kernels of a profile.

    Attributes:
        table: one row per signature: `key`, the columns of `SIGNATURE`, `calls`, `row` (first kernel that has it),
            `kind`, `ident` (what makes two kernels of different steps the same one), the fields of `Traffic`,
            `bytes_low`, `bytes`, `bytes_high`, `memory_us` and `compute_us` (the least time that bytes and FLOPs need).
        keys: the signature of every kernel, in the order of the profile.
    """

    table: "pl.DataFrame"
    keys: "pl.Series"


def signatures(kernels: "pl.DataFrame", operators: OperatorTable, machine: "Parameters") -> Signatures:
    """Find the unique signatures and compute bytes and FLOPs once for each.

    Args:
        kernels: of a profile.
        operators: what is known about operators.
        machine: the nominal machine.
    """
    import polars as pl

    # A column at a time, a hash of text is several times faster than one of whole rows.
    hashes = (pl.col(column).hash(seed) for seed, column in enumerate(SIGNATURE))
    keys = kernels.select(pl.sum_horizontal(hashes).alias("key")).to_series()
    unique = (
        pl.DataFrame({"key": keys})
        .with_row_index("row")
        .group_by("key")
        .agg(pl.len().alias("calls"), pl.col("row").min())
    ).sort("row")
    table = unique.hstack(kernels[unique["row"]].select(pl.col(c).cast(pl.String) for c in SIGNATURE).get_columns())
    rows = [_signature(row, operators, machine) for row in table.iter_rows(named=True)]
    table = table.hstack(pl.DataFrame(rows, schema=_SCHEMA, orient="row").get_columns())
    return Signatures(table, keys)


_SCHEMA: dict[str, Any] = {
    "kind": str, "engine": str, "ident": str, "phase": str, "weight_bytes": float, "read_low": float, "read": float,
    "read_high": float, "other_bytes": float, "flops": float, "compute": str, "rows": int, "experts": int,
    "known": bool, "issue": str, "bytes_low": float, "bytes": float, "bytes_high": float, "memory_us": float,
    "compute_us": float,
}  # fmt: skip


def _signature(row: Mapping[str, Any], operators: OperatorTable, machine: "Parameters") -> tuple[Any, ...]:
    from pipeline.profile.tensors import parse_tensors

    kind = operators.kind(row["op_type"], row["core"])
    try:
        sides = [
            parse_tensors(*(row[f"{side}_{what}"] for what in ("shapes", "dtypes", "formats")))
            for side in ("input", "output")
        ]
        found: Traffic = traffic(kind, *sides)
    except ValueError as error:
        found = Traffic(known=False, issue=f"inconsistent: {error}")
    ident = str(row["op_type"])
    # Two MatMuls of different weights are two kernels; other shapes may grow from step to step, as those of attention
    # made of batched MatMuls.
    if kind.traffic == "grouped":  # how many rows the experts get differs from layer to layer
        ident += f" {(row['input_shapes'] or '').split(';')[1:2]}"
    elif kind.target and kind.name != "batch_matmul":
        ident += f" {row['input_shapes']} {row['output_shapes']}"
    hbm = machine.hbm_peak * machine["hbm_share"]
    low, mid, high = (found.other_bytes + read for read in (found.read_low, found.read, found.read_high))
    compute = None if found.flops is None else found.flops / machine[f"peak_{found.compute}"]
    return (
        kind.name, kind.engine, ident, operators.phase_word(row["op_type"]), found.weight_bytes, found.read_low,
        found.read, found.read_high, found.other_bytes, found.flops, found.compute, found.rows, found.experts,
        found.known, found.issue, *((low, mid, high, mid / hbm) if found.known else (None, None, None, None)), compute,
    )  # fmt: skip


def classified(kernels: "pl.DataFrame", machine: "Parameters", limits: Limits) -> "pl.DataFrame":
    """Add rates, share of the peaks, class, reason and agreement.

    Args:
        kernels: one row per kernel with `duration_us`, the metrics of the profile, and the columns of
            `Signatures.table`.
        machine: the nominal machine.
        limits: thresholds.

    Returns:
        The same rows with the columns `RATES`: GB/s, TFLOPS, shares of the HBM peak and of the peak of the type
        (0 .. 1, above 1 is legal: the bytes came from L2), the busiest pipe, the class, the reason's code
        (`words.REASONS`), and whether the ratios agree with the shapes (null where either is missing).
    """
    import polars as pl

    duration = pl.when(pl.col("duration_us") >= _SHORTEST).then(pl.col("duration_us"))
    peak = pl.lit(None, pl.Float64)
    for name in ("bf16", "int8", "fp32"):
        peak = pl.when(pl.col("compute") == name).then(machine[f"peak_{name}"]).otherwise(peak)
    return (
        kernels.with_columns(
            gb_s=pl.col("bytes") / duration / 1e3,
            tflops=pl.col("flops") / duration / 1e6,
            hbm_share=pl.col("bytes") / duration / machine.hbm_peak,
            peak_share=pl.col("flops") / duration / peak,
            busiest=_busiest(),
        )
        .with_columns(_class(limits))
        .unnest("verdict")
        .with_columns(agrees=_agrees())
    )


def _busiest() -> "pl.Expr":
    """The pipe that works longest; ratios are shares of the time of their cores, which a mixed kernel has two of."""
    import polars as pl

    work = {pipe: _work(pipe) for pipe in PIPES}
    most = pl.max_horizontal(*work.values())
    found = pl.lit(None, pl.String)
    for pipe, busy in reversed(work.items()):
        found = pl.when(busy == most).then(pl.lit(pipe)).otherwise(found)
    # Where no load pipe was measured (ArithmeticUtilization), the busiest of the others says nothing.
    loads = pl.any_horizontal(pl.col(PIPES[pipe][0]).is_not_null() for pipe in ("mte2", "aiv_mte2"))
    return pl.when(loads & (most > 0)).then(found)


def _work(pipe: str) -> "pl.Expr":
    """Time that a pipe works. Files of devices with one kind of core (310P) have one time for all ratios."""
    import polars as pl

    ratio, time = PIPES[pipe]
    other = "aiv_us" if time == "aicore_us" else "aicore_us"
    return (pl.col(ratio) * pl.coalesce(time, other, 1.0)).fill_nan(None)


def _class(limits: Limits) -> "pl.Expr":
    import polars as pl

    duration, known = pl.col("duration_us"), pl.col("known")
    pipe = pl.col("busiest")
    ideal = pl.max_horizontal(pl.col("memory_us").fill_null(0.0), pl.col("compute_us").fill_null(0.0))
    busy = pl.max_horizontal("aicore_us", "aiv_us")
    explained = ideal >= limits.ideal_share * duration
    # Without bytes and FLOPs, a load pipe a bit busier than the Cube proves nothing: fast MatMuls look like that too.
    cube = _work("mac").fill_null(0.0)
    cube_too = (cube > 0.0) & (cube >= 0.5 * pl.max_horizontal(*(_work(p) for p in _LOADS)))
    idle_cores = busy.is_null() | (busy <= limits.busy_share * duration)

    def verdict(name: str, reason: str) -> "pl.Expr":
        return pl.struct(pl.lit(name).alias("class"), pl.lit(reason).alias("reason"))

    return (
        pl.when(pl.col("kind") == "communication").then(verdict("communication", "link"))
        .when(pl.col("core") == "AI_CPU").then(verdict("unknown", "ai_cpu"))
        .when((duration <= limits.short) & ~explained & idle_cores & (busy.is_not_null() | known))
        .then(verdict("launch", "launch"))
        .when(pipe.is_in(_SCALARS) & ~explained).then(verdict("scalar", "scalar_pipe"))
        .when(known & (pl.col("compute_us") > pl.col("memory_us"))).then(verdict("compute", "flops"))
        .when(known & pl.col("compute_us").is_not_null()).then(
            pl.when(pl.col("hbm_share") > 1.0).then(verdict("memory", "above_peak"))
            .when(pl.col("hbm_share") < limits.saturated).then(verdict("memory", "far_from_peak"))
            .otherwise(verdict("memory", "bytes")))
        .when(known & explained).then(
            pl.when(pl.col("hbm_share") > 1.0).then(verdict("memory", "above_peak"))
            .otherwise(verdict("memory", "bytes")))
        .when(pipe.is_in(_LOADS)).then(
            pl.when(cube_too).then(verdict("unknown", "balanced"))
            .when(known).then(verdict("memory", "load_pipe")).otherwise(verdict("memory", "pipe_only")))
        .when(pipe == "vec").then(verdict("vector", "vector_pipe"))
        .when(pipe.is_in(_SCALARS)).then(verdict("scalar", "scalar_pipe"))
        .when(pipe.is_in(["mac", "mte1", "fixpipe"])).then(verdict("compute", "pipe_only"))
        .otherwise(verdict("unknown", "no_metrics")).alias("verdict")
    )  # fmt: skip


def _agrees() -> "pl.Expr":
    """Whether the busiest pipe is the one that the class names; only where shapes gave the class."""
    import polars as pl

    pipe, name = pl.col("busiest"), pl.col("class")
    fits = pl.when(name == "memory").then(pipe.is_in(_LOADS)).when(name == "compute").then(pipe == "mac")
    return pl.when(pl.col("reason").is_in(["bytes", "far_from_peak", "above_peak", "flops"])).then(fits)
