"""Ranks compared: which one computes longest per step, and so keeps the others waiting."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from pipeline.profile.rows import Profile

# Their kernels contain waiting for other ranks, and overlap computing.
COMMUNICATION_CORES = ("HCCL", "COMMUNICATION")


@dataclass(frozen=True)
class RankTime:
    """Measured times of one profile, medians over its steps, in microseconds.

    Attributes:
        profile: which one.
        steps: number of steps the medians are over: the first one is left out if there are three or more, because
            first calls of kernels are slower.
        computing_us: time in which at least one kernel ran that isn't communication.
        busy_us: time in which at least one kernel ran, on any stream.
        span_us: from the first start to the last end.
    """

    profile: "Profile"
    steps: int
    computing_us: float
    busy_us: float
    span_us: float


def rank_time(profile: "Profile") -> RankTime:
    """Step times of one profile by the union of intervals: kernels of several streams overlap."""
    kernels = profile.kernels.with_columns(
        pl.col("step").fill_null(-1) if _has_steps(profile) else pl.lit(0).alias("step")
    )
    kernels = kernels.filter(pl.col("step") >= 0)
    steps = sorted(kernels["step"].unique())
    if len(steps) > 2:
        kernels = kernels.filter(pl.col("step") != steps[0])
    computing = kernels.filter(~pl.col("core").is_in(COMMUNICATION_CORES).fill_null(False))
    ends = (pl.col("start_us") + pl.col("duration_us")).max() - pl.col("start_us").min()
    spans = kernels.group_by("step").agg(ends.alias("us"))["us"].to_list()
    return RankTime(profile, len(spans), _median(union_us(computing)), _median(union_us(kernels)), _median(spans))


def union_us(kernels: pl.DataFrame) -> list[float]:
    """Per step the time covered by at least one of the kernels, overlaps counted once.

    Args:
        kernels: `step`, `start_us` and `duration_us`.
    """
    end = pl.col("start_us") + pl.col("duration_us")
    # What ended last before a kernel, in start order: the kernel covers only what comes after that.
    before = end.cum_max().shift(1).over("step")
    new = pl.max_horizontal(end - pl.max_horizontal("start_us", before), 0.0)
    return (
        kernels.sort("start_us").with_columns(new.alias("us")).group_by("step").agg(pl.col("us").sum())["us"].to_list()
    )


def slowest(times: Sequence[RankTime]) -> RankTime:
    """The one that computes longest. Communication is left out: the fast ranks wait for the slow one in it."""
    return max(times, key=lambda time: time.computing_us)


def _has_steps(profile: "Profile") -> bool:
    return profile.kernels["step"].null_count() < profile.kernels.height


def _median(values: list[float]) -> float:
    return median(values) if values else 0.0
