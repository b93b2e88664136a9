"""Files as profilers write them, and what they are read into."""

from pathlib import Path

import polars as pl

from pipeline.profile.reader import read_profiles
from pipeline.profile.rows import SCHEMA
from tests.pipeline.profile.files import row, write


def test_a_level1_table_has_every_column(tmp_path: Path):
    (profile,) = read_profiles(write(tmp_path / "kernel_details.csv", row())).profiles
    assert dict(profile.kernels.schema) == dict(SCHEMA)
    kernel = profile.kernels.row(0, named=True)
    assert kernel["name"] == "aclnnMatmul_MatMulV2"
    assert (kernel["line"], kernel["step"], kernel["device"], kernel["stream"]) == (2, 7, 0, "2")
    assert kernel["input_shapes"] == "1,1024;64,192,16,16"
    assert (kernel["duration_us"], kernel["mte2_ratio"], kernel["cube_utilization"]) == (5.44, 0.779, 80.8)


def test_starts_keep_their_nanoseconds(tmp_path: Path):
    """As float64 the epoch in microseconds is good for 0.25 us: the base is subtracted as an integer."""
    starts = ["1736413971558972.912\t", '"1736413971558972.913\t"', "1736413971558973"]
    (profile,) = read_profiles(write(tmp_path / "k.csv", *(row(start=start) for start in starts))).profiles
    assert profile.base_us == 1736413971558972
    assert profile.kernels["start_us"].to_list() == [0.912, 0.913, 1.0]
    assert profile.kernels["start_us"].dtype == pl.Float64
