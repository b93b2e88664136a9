"""Steps of a profile: from the Step Id, else from the repetition of the kernel sequence.

The kernels of all steps that have the same sequence become one step of medians. The first step is left out: its
kernels are slower (instruction-cache misses), and it may be a warm-up.

A profile has millions of kernels: everything here is a handful of passes over a few numeric columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.analysis.layers import find_blocks

if TYPE_CHECKING:
    import polars as pl

# An anchor is a kernel that comes once per step: such a share of its distances must be alike.
_REGULAR = (0.8, 0.5)  # the second if the first finds no steps: prefill steps in between, of other lengths
_TRIES = 6  # distances that are tried
# Pipe ratios hardly change from step to step: their medians are over so many steps in the middle.
_METRIC_STEPS = 32


@dataclass(frozen=True)
class Steps:
    """Which kernels form a step.

    Attributes:
        kernels: `row` (index in the profile), `lane` (number of the stream), `start_us`, `duration_us`, `key`, `ident`
            (number), `step` (consecutive numbers from 0; null outside of steps), `slot` (lane and position of the
            kernel in its step on that lane, in one number), sorted by start.
        found_by: `step_id`, `repetition`, or `none`: all kernels count as one step.
        outside: kernels that belong to no step.
    """

    kernels: "pl.DataFrame"
    found_by: str
    outside: int


def find_steps(kernels: "pl.DataFrame") -> Steps:
    """Number the steps.

    Args:
        kernels: `row`, `lane`, `step` (as in the file, or null), `start_us`, `duration_us`, `key`, `ident`.
    """
    import polars as pl

    if not kernels["start_us"].is_sorted():
        kernels = kernels.sort("start_us", "row")
    if kernels["step"].drop_nulls().n_unique() > 1:
        numbered = _placed(kernels.with_columns(pl.col("step").rank("dense").cast(pl.Int64) - 1))
        return Steps(numbered, "step_id", numbered["step"].null_count())
    for starts in _step_starts(kernels):
        found = _numbered(kernels, starts)
        if found is not None:
            return Steps(found, "repetition", found["step"].null_count())
    told = bool(kernels.height) and not kernels["step"].null_count()  # the file says that there is one step
    return Steps(_placed(kernels.with_columns(step=pl.lit(0, pl.Int64))), "step_id" if told else "none", 0)


def _numbered(kernels: "pl.DataFrame", starts: "pl.Series") -> "pl.DataFrame | None":
    """Steps that begin at these times; None if most kernels are in no step that comes again, or these are layers."""
    import polars as pl

    step = pl.Series("step", starts.search_sorted(kernels["start_us"], side="right")).cast(pl.Int64) - 1
    numbered = _placed(kernels.with_columns(step.set(step < 0, None)))
    alike = prints(numbered.filter(pl.col("step").is_not_null()))
    most = alike.group_by("print").agg(
        pl.len().alias("steps"), pl.col("kernels").sum(), pl.col("step").min().alias("first")
    )
    most = most.sort("kernels", "first")[-1]
    enough = most["steps"][0] > 1 and 2 * most["kernels"][0] >= numbered.height
    return numbered if enough and not _only_layers(numbered, most["first"][0]) else None


def _placed(kernels: "pl.DataFrame") -> "pl.DataFrame":
    """Add the slot of every kernel."""
    import polars as pl

    within = pl.int_range(pl.len(), dtype=pl.UInt64).over("step", "lane")
    return kernels.with_columns(slot=pl.col("lane").cast(pl.UInt64) * (1 << 32) + within)


def prints(kernels: "pl.DataFrame") -> "pl.DataFrame":
    """What kernels each step has in which order on which stream.

    Args:
        kernels: of `Steps`, only those in steps.

    Returns:
        `step`, `print` (equal for equal steps), `kernels`, `begin` and `time` (from the first start to the last end).
    """
    import polars as pl

    # Lanes and positions fit into 44 bits, kinds of kernels into the 20 above them.
    what = (pl.col("slot") % (1 << 44) + pl.col("ident").cast(pl.UInt64) * (1 << 44)).hash()
    return kernels.group_by("step").agg(
        what.sum().alias("print"),
        pl.len().alias("kernels"),
        pl.col("start_us").min().alias("begin"),
        ((pl.col("start_us") + pl.col("duration_us")).max() - pl.col("start_us").min()).alias("time"),
    )


def _only_layers(kernels: "pl.DataFrame", step: int) -> bool:
    """Whether what repeats are the layers of a single step.

    A step has layers of its own. If what repeats has none, and there are kernels (embedding, head) that come only
    before the first or after the last repetition, these belong to the step, and the repetitions are its layers.
    """
    import polars as pl

    inside = kernels.filter(pl.col("step") == step)
    lanes = [lane["ident"].to_numpy() for lane in inside.partition_by("lane")]
    if any(2 * b.period * b.layers >= len(lane) and b.period > 1 for lane in lanes for b in find_blocks(lane)):
        return False
    at_ends = kernels.filter(pl.col("step").is_null() | (pl.col("step") == kernels["step"].max()))
    return not at_ends["ident"].is_in(inside["ident"].implode()).all()


def _step_starts(kernels: "pl.DataFrame") -> "Iterator[pl.Series]":
    """Start times of the kernel that may begin a step, on the busiest stream, the likeliest first.

    Layers repeat inside a step, so what is looked for is the longest regular distance: kernels that come once per step
    (embedding, norm before the head, the head). Of these, a step begins with the one before which the stream idles
    most.
    """
    import polars as pl

    busiest = kernels.group_by("lane").agg(pl.col("duration_us").sum()).sort("duration_us", descending=True)
    if busiest.is_empty():
        return
    lane = kernels.filter(pl.col("lane") == busiest["lane"][0]).with_row_index("at")
    lane = lane.with_columns(
        idle=pl.col("start_us") - (pl.col("start_us") + pl.col("duration_us")).shift(1),
        gap=pl.col("at").cast(pl.Int64).diff().over("ident"),
    )
    common = pl.col("gap").drop_nulls().mode().min()
    found = (
        lane.group_by("ident")
        .agg(
            pl.len().alias("calls"),
            common.alias("gap"),
            (pl.col("gap") == common).mean().alias("regular"),
            pl.col("idle").median(),
            pl.col("at").min(),
        )
        .filter((pl.col("calls") > 1) & (pl.col("regular") >= min(_REGULAR)))
        # It must come all along, not only twice near each other; a kernel again and again is no step.
        .filter((pl.col("gap") * pl.col("calls") >= 0.5 * lane.height) & (pl.col("gap") > 1))
    )
    for regular in _REGULAR:
        enough = found.filter(pl.col("regular") >= regular)
        # A longer distance may be that of steps of another kind (prefill), which do not come again alike.
        for gap in enough["gap"].unique().sort(descending=True).head(_TRIES):
            once = enough.filter(pl.col("gap") == gap).sort(["idle", "at"], descending=[True, False])
            # Without a clear pause the step begins with the first of them in the file.
            anchor = once if (once["idle"][0] or 0.0) > 1.0 else once.sort("at")
            yield lane.filter(pl.col("ident") == anchor["ident"][0])["start_us"]


@dataclass(frozen=True)
class MedianStep:
    """One step whose times are medians over all steps with its sequence of kernels.

    Attributes:
        kernels: per kernel in order of start: `lane`, `slot`, `key`, `ident`, `row`, `varies` (it has other shapes in
            some steps), `start_us` (from the start of the step) and `own_us` (duration) in the representative step,
            which is the one of median time; `duration_us` and further columns are medians over the steps. Starts are of
            one real step, so that what waits for what can be seen: medians of starts need not fit to medians of
            durations.
        step_us: median time of a step, from its first start to its last end.
        step_low, step_high: 10 and 90 % over the steps; equal to the median if there is one step only.
        steps: numbers of the steps that took part.
        dropped: steps left out as the first.
        different: steps left out because kernels are missing or others, or the order differs.
    """

    kernels: "pl.DataFrame"
    step_us: float
    step_low: float
    step_high: float
    steps: tuple[int, ...]
    dropped: int
    different: int


def median_step(
    kernels: "pl.DataFrame", steps: "list[int]", profile: "pl.DataFrame", metrics: tuple[str, ...]
) -> MedianStep:
    """The median step of some steps.

    Args:
        kernels: of `Steps`.
        steps: the steps of one phase, in order of time.
        profile: the profile's kernels, which `row` counts.
        metrics: its columns whose medians are wanted too.
    """
    import polars as pl

    dropped = 1 if len(steps) > 1 else 0
    mine = kernels.filter(pl.col("step").is_in(steps[dropped:]))
    per_step = prints(mine)
    common = per_step.group_by("print").agg(pl.len(), pl.col("step").min())
    common = common.sort(["len", "step"], descending=[True, False])
    chosen = per_step.filter(pl.col("print") == common["print"][0]).sort("time", "step")
    representative = chosen["step"][(chosen.height - 1) // 2]
    same = mine.join(chosen.select("step", "begin"), on="step")
    # Of one step to the next a weight keeps its shape; what grows with the sequence is an activation.
    varies = (pl.col("key").min() != pl.col("key").max()).alias("varies")
    rows = same.group_by("slot").agg(pl.col("duration_us").median(), varies)
    start, own = pl.col("start_us") - pl.col("begin"), pl.col("duration_us").alias("own_us")
    about = same.filter(pl.col("step") == representative).select("slot", "lane", "key", "ident", "row", start, own)
    rows = about.join(rows, on="slot").join(_metrics(same, chosen, profile, metrics), on="slot")
    times = chosen["time"]
    low, mid, high = (float(times.quantile(q, "linear") or 0.0) for q in (0.1, 0.5, 0.9))
    numbers = tuple(sorted(chosen["step"].to_list()))
    left_out = per_step.height - chosen.height
    return MedianStep(rows.sort("start_us", "row"), mid, low, high, numbers, dropped, left_out)


def _metrics(
    same: "pl.DataFrame", chosen: "pl.DataFrame", profile: "pl.DataFrame", metrics: tuple[str, ...]
) -> "pl.DataFrame":
    """Slot -> medians of the metrics over some steps whose time is near the median."""
    import polars as pl

    wanted = [m for m in metrics if m in profile.columns and profile[m].null_count() < profile.height]
    first = max(0, chosen.height - _METRIC_STEPS) // 2
    few = same.filter(pl.col("step").is_in(chosen["step"][first : first + _METRIC_STEPS].to_list()))
    values = profile.select(wanted)[few["row"]] if wanted else pl.DataFrame()
    medians = few.select("slot").hstack(values.get_columns()).group_by("slot").agg(pl.col(m).median() for m in wanted)
    return medians.with_columns(pl.lit(None, pl.Float64).alias(m) for m in metrics if m not in wanted)
