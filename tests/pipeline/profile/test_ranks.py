"""Ranks compared by the time in which they compute."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.profile.ranks import union_us
from pipeline.profile.reader import Profiles, read_profiles
from tests.pipeline.profile.files import row, write

BASE = 1736413971558000


def run(folder: Path, *kernels: tuple[int, int, float, str]) -> None:
    """A run of kernels (step, start, duration, core)."""
    rows = [row(step=str(s), start=f"{BASE + at}.000\t", duration=str(us), core=core) for s, at, us, core in kernels]
    write(folder / "kernel_details.csv", *rows)


def profiles(path: Path) -> Profiles:
    return read_profiles(path)


def test_overlapping_streams_are_counted_once(tmp_path: Path):
    run(tmp_path, (1, 0, 10, "AI_CORE"), (1, 2, 3, "AI_VECTOR_CORE"), (1, 8, 6, "MIX_AIC"), (1, 20, 1, "AI_CORE"))
    (time,) = profiles(tmp_path).times
    assert (time.computing_us, time.busy_us, time.span_us, time.steps) == (15.0, 15.0, 21.0, 1)


def test_the_slowest_computes_longest_not_waits_longest(tmp_path: Path):
    run(tmp_path / "rank0", (1, 0, 10, "AI_CORE"), (1, 10, 90, "HCCL"))
    run(tmp_path / "rank1", (1, 0, 40, "AI_CORE"), (1, 40, 10, "COMMUNICATION"))
    found = profiles(tmp_path)
    assert [time.busy_us for time in found.times] == [100.0, 50.0]
    assert found.slowest.profile.rank == 1 and found.slowest.computing_us == 40.0


def test_the_first_of_three_steps_is_left_out(tmp_path: Path):
    run(tmp_path, (1, 0, 95, "AI_CORE"), (2, 100, 10, "AI_CORE"), (3, 200, 12, "AI_CORE"))
    (time,) = profiles(tmp_path).times
    assert (time.steps, time.computing_us) == (2, 11.0)


def test_two_steps_both_count(tmp_path: Path):
    run(tmp_path, (1, 0, 20, "AI_CORE"), (2, 100, 10, "AI_CORE"))
    assert profiles(tmp_path).times[0].computing_us == 15.0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=25))
def test_the_union_is_the_number_of_covered_microseconds(kernels: list[tuple[int, int, int]]):
    frame = pl.DataFrame(kernels, schema=["step", "start_us", "duration_us"], orient="row").cast(
        {"start_us": pl.Float64, "duration_us": pl.Float64}
    )
    covered = {s: set() for s, _, _ in kernels}
    for s, at, us in kernels:
        covered[s] |= set(range(at, at + us))
    assert sorted(union_us(frame)) == pytest.approx(sorted(float(len(times)) for times in covered.values()))
