"""Steps of a profile: from the Step Id, else from the repetition of the kernel sequence.

The kernels of all steps that have the same sequence become one step of medians. The first step is left out: its
kernels are slower (instruction-cache misses), and it may be a warm-up.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

# An anchor is a kernel that comes once per step: this share of its distances must be alike.
_REGULAR = 0.8


@dataclass(frozen=True)
class Steps:
    """Which kernels form a step.

    Attributes:
        kernels: `row` (index in the profile), `stream`, `start_us`, `duration_us`, `key`, `ident` (number), `step`
            (consecutive numbers from 0; null outside of steps), sorted by start.
        found_by: `step_id`, `repetition`, or `none`: all kernels count as one step.
        outside: kernels that belong to no step.
    """

    kernels: "pl.DataFrame"
    found_by: str
    outside: int


def find_steps(kernels: "pl.DataFrame") -> Steps:
    """Number the steps.

    Args:
        kernels: `row`, `stream`, `step` (as in the file, or null), `start_us`, `duration_us`, `key`, `ident`.
    """
    import polars as pl

    kernels = kernels.sort("start_us", "row")
    named = kernels["step"].drop_nulls().n_unique()
    if named > 1:
        numbered = kernels.with_columns(pl.col("step").rank("dense").cast(pl.Int64) - 1)
        return Steps(numbered, "step_id", numbered["step"].null_count())
    starts = _step_starts(kernels)
    if starts is None:
        return Steps(kernels.with_columns(step=pl.lit(0, pl.Int64)), "none", 0)
    step = pl.Series("step", starts.search_sorted(kernels["start_us"], side="right")).cast(pl.Int64) - 1
    # What comes after the last whole step can't be told from it: the last step ends like the ones before.
    numbered = kernels.with_columns(step.set(step < 0, None))
    alike = prints(numbered.filter(pl.col("step").is_not_null()))
    most = alike.group_by("print").agg(pl.len().alias("steps"), pl.col("kernels").sum()).sort("kernels")[-1]
    if most["steps"][0] < 2 or 2 * most["kernels"][0] < numbered.height:
        return Steps(kernels.with_columns(step=pl.lit(0, pl.Int64)), "none", 0)
    return Steps(numbered, "repetition", numbered["step"].null_count())


def prints(kernels: "pl.DataFrame") -> "pl.DataFrame":
    """What kernels each step has in which order on which stream.

    Args:
        kernels: of `Steps`, only those in steps.

    Returns:
        `step`, `print` (equal for equal steps), `kernels`, `begin` and `time` (from the first start to the last end).
    """
    import polars as pl

    placed = kernels.select("step", "stream", "ident", "start_us", "duration_us").with_columns(
        at=pl.int_range(pl.len()).over("step", "stream")
    )
    return placed.group_by("step").agg(
        pl.struct("stream", "at", "ident").hash().sum().alias("print"),
        pl.len().alias("kernels"),
        pl.col("start_us").min().alias("begin"),
        ((pl.col("start_us") + pl.col("duration_us")).max() - pl.col("start_us").min()).alias("time"),
    )


def _step_starts(kernels: "pl.DataFrame") -> "pl.Series | None":
    """Start times of the kernel that begins a step, on the busiest stream; None if nothing repeats.

    Layers repeat inside a step, so what is looked for is the longest regular distance: kernels that come once per step
    (embedding, norm before the head, the head). Of these, a step begins with the one before which the stream idles
    most.
    """
    import polars as pl

    busiest = kernels.group_by("stream").agg(pl.col("duration_us").sum()).sort("duration_us", descending=True)
    if busiest.is_empty():
        return None
    lane = kernels.filter(pl.col("stream").eq_missing(busiest["stream"][0])).with_row_index("at")
    lane = lane.with_columns(idle=pl.col("start_us") - (pl.col("start_us") + pl.col("duration_us")).shift(1))
    gaps = lane.with_columns(gap=pl.col("at").cast(pl.Int64).diff().over("ident"))
    found = (
        gaps.group_by("ident")
        .agg(
            pl.len().alias("calls"),
            pl.col("gap").drop_nulls().mode().min().alias("gap"),
            (pl.col("gap") == pl.col("gap").drop_nulls().mode().min()).mean().alias("regular"),
            pl.col("idle").median(),
            pl.col("at").min(),
        )
        .filter((pl.col("calls") > 1) & (pl.col("regular") >= _REGULAR))
        # It must come all along, not only twice near each other.
        .filter(pl.col("gap") * pl.col("calls") >= 0.5 * lane.height)
    )
    if found.is_empty():
        return None
    once = found.filter(pl.col("gap") == found["gap"].max()).sort(["idle", "at"], descending=[True, False])
    idle = once["idle"].fill_null(0.0)
    # Without a clear pause the step begins with the first of them in the file.
    anchor = once if idle[0] is not None and idle[0] > 1.0 else once.sort("at")
    return lane.filter(pl.col("ident") == anchor["ident"][0])["start_us"]


@dataclass(frozen=True)
class MedianStep:
    """One step whose times are medians over all steps with its sequence of kernels.

    Attributes:
        kernels: per kernel in order of start: `stream`, `at` (position in the stream), `key`, `ident`, `row` (of the
            representative step), `start_us` (from the start of the step), `duration_us`, `spread_us` (half of the range
            that holds the middle 80 % of the steps), and the medians of further columns.
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
    mine = kernels.filter(pl.col("step").is_in(steps[dropped:])).with_columns(
        at=pl.int_range(pl.len()).over("step", "stream")
    )
    per_step = prints(mine)
    common = (
        per_step.group_by("print").agg(pl.len(), pl.col("step").min()).sort(["len", "step"], descending=[True, False])
    )
    chosen = per_step.filter(pl.col("print") == common["print"][0]).sort("time", "step")
    middle = chosen["step"][(chosen.height - 1) // 2]
    same = mine.join(chosen.select("step", "begin"), on="step").with_columns(pl.col("start_us") - pl.col("begin"))
    wanted = [m for m in metrics if m in profile.columns and profile[m].null_count() < profile.height]
    same = same.hstack(profile[same["row"]].select(wanted).get_columns())
    duration = pl.col("duration_us")
    rows = (
        same.group_by("stream", "at")
        .agg(
            pl.col("key").filter(pl.col("step") == middle).first(),
            pl.col("ident").first(),
            pl.col("row").filter(pl.col("step") == middle).first(),
            pl.col("start_us").median(),
            duration.median(),
            ((duration.quantile(0.9) - duration.quantile(0.1)) / 2).alias("spread_us"),
            *(pl.col(m).median() for m in wanted),
        )
        .with_columns(pl.lit(None, pl.Float64).alias(m) for m in metrics if m not in wanted)
        .sort("start_us", "row")
    )
    times = chosen["time"]
    low, mid, high = (float(times.quantile(q) or 0.0) for q in (0.1, 0.5, 0.9))
    mid = float(times.median() or 0.0)  # type: ignore[arg-type]
    numbers = tuple(sorted(chosen["step"].to_list()))
    return MedianStep(rows, mid, min(low, mid), max(high, mid), numbers, dropped, per_step.height - chosen.height)
