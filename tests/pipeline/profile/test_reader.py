"""Files as profilers and their users leave them, and what they are read into. One test per trap of the formats."""

from pathlib import Path

import polars as pl
import pytest

from models.problems import Problem, RefusedError
from pipeline.profile.reader import ReadOptions, read_profiles
from pipeline.profile.rows import SCHEMA, Profile
from tests.pipeline.profile.files import COLUMNS, LEVEL0, MATMUL, SUMMARY, renamed, row, write


def read(path: Path) -> Profile:
    """The one profile in a file."""
    (profile,) = read_profiles(path).profiles
    return profile


def codes(profile: Profile) -> list[str]:
    return [problem.code for problem in profile.problems]


def problem(profile: Profile, code: str) -> Problem:
    (found,) = [problem for problem in profile.problems if problem.code == code]
    return found


def test_a_level1_table_has_every_column(tmp_path: Path):
    profile = read(write(tmp_path / "kernel_details.csv", row()))
    assert dict(profile.kernels.schema) == dict(SCHEMA)
    kernel = profile.kernels.row(0, named=True)
    assert kernel["name"] == "aclnnMatmul_MatMulV2"
    assert (kernel["line"], kernel["step"], kernel["device"], kernel["stream"]) == (2, 7, 0, "2")
    assert (kernel["duration_us"], kernel["mte2_ratio"], kernel["cube_utilization"]) == (5.44, 0.779, 80.8)
    assert (profile.kind, profile.layout, profile.has_shapes, profile.has_ratios) == (
        *("pipe_utilization", "kernel_details"),
        *(True, True),
    )
    assert profile.problems == ()


# -- times


def test_starts_keep_their_nanoseconds(tmp_path: Path):
    """As float64 the epoch in microseconds is good for 0.25 us: the base is subtracted as an integer."""
    starts = ["1736413971558972.912\t", '"1736413971558972.913\t"', "1736413971558973", " 1736413971558974.5 "]
    profile = read(write(tmp_path / "k.csv", *(row(start=start) for start in starts)))
    assert profile.base_us == 1736413971558972
    assert profile.kernels["start_us"].to_list() == [0.912, 0.913, 1.0, 2.5]


def test_more_than_six_decimals_are_rounded_not_lost(tmp_path: Path):
    profile = read(
        write(tmp_path / "k.csv", row(start="1736413971558972.0000004"), row(start="1736413971558973.1234567"))
    )
    assert profile.kernels["start_us"].to_list() == [0.0, 1.123457]


def test_rows_stay_in_file_order(tmp_path: Path):
    starts = ["1736413971558979", "1736413971558972", "1736413971558975"]
    profile = read(write(tmp_path / "k.csv", *(row(start=start) for start in starts)))
    assert profile.kernels["start_us"].to_list() == [7.0, 0.0, 3.0]
    assert profile.kernels["line"].to_list() == [2, 3, 4]


@pytest.mark.parametrize(
    "cells",
    [
        {"start": "N/A"},
        {"start": "soon"},
        {"start": "1e999999999999"},
        {"duration": "N/A"},
        {"duration": "-1"},
        {"start": "-5"},
    ],
)
def test_a_row_without_a_usable_time_is_left_out_and_named(tmp_path: Path, cells: dict[str, str]):
    profile = read(write(tmp_path / "k.csv", row(), row(**cells), row()))
    assert profile.kernels["line"].to_list() == [2, 4]
    assert problem(profile, "row-without-time").line == 3


def test_a_start_a_day_off_does_not_cost_the_others_their_precision(tmp_path: Path):
    profile = read(write(tmp_path / "k.csv", row(), row(start="17364139715"), row(start="1736413971558973.001")))
    assert profile.kernels["start_us"].to_list() == [0.912, 1.001]
    assert problem(profile, "start-far-off").line == 3


# -- cells


@pytest.mark.parametrize("shapes", ['"""1,1024;64,192,16,16"""', '"1,1024;64,192,16,16"'])
def test_shapes_lose_their_literal_quotes(tmp_path: Path, shapes: str):
    assert read(write(tmp_path / "k.csv", row(shapes=shapes))).kernels["input_shapes"][0] == "1,1024;64,192,16,16"


def test_an_empty_shape_is_a_scalar_and_na_is_none(tmp_path: Path):
    path = write(tmp_path / "k.csv", row(shapes='""""""'), row(shapes=""), row(shapes="N/A"), row(shapes='""";"""'))
    assert read(path).kernels["input_shapes"].to_list() == ["", "", None, ";"]


def test_na_metrics_of_communication_are_null(tmp_path: Path):
    metrics = {name: "N/A" for name in COLUMNS if name.startswith(("aic", "aiv", "cube"))}
    cells = MATMUL | metrics | {"Accelerator Core": "HCCL", "Stream ID": "N/A", "Block Dim": "0"}
    profile = read(write(tmp_path / "k.csv", ",".join(cells.get(name, "N/A") for name in COLUMNS), row()))
    kernel = profile.kernels.row(0, named=True)
    assert [kernel[name] for name in ("stream", "mte2_ratio", "aicore_us", "cube_utilization")] == [None] * 4
    assert (kernel["core"], kernel["block_dim"]) == ("HCCL", 0)
    assert profile.problems == ()


def test_a_cell_that_is_no_number_is_null_and_reported(tmp_path: Path):
    profile = read(
        write(tmp_path / "k.csv", row(), row(mte2="fast"), row(mte2=" 0.5 "), row(mte2="nan"), row(step="8.0"))
    )
    assert profile.kernels["mte2_ratio"].to_list() == [0.779, None, 0.5, None, 0.779]
    assert profile.kernels["step"].to_list() == [7, 7, 7, 7, 8]
    told = problem(profile, "not-a-number")
    assert told.line == 3 and "mte2_ratio" in told.message and "'fast'" in told.message and "(3, 5)" in told.message


# -- lines


def test_ragged_rows_are_named_by_line_and_the_rest_is_kept(tmp_path: Path):
    short = row().replace(",AI_CORE,", ",", 1)
    long = row() + ",1,2"
    profile = read(write(tmp_path / "k.csv", row(), short, row(), long, short))
    assert profile.kernels["line"].to_list() == [2, 4]
    told = {p.line: p.message for p in profile.problems if p.code == "ragged-row"}
    assert told.keys() == {3, 5}
    assert "46 fields instead of 47" in told[3] and "(3, 6)" in told[3]
    assert all(p.file == str(profile.source) for p in profile.problems)


def test_a_quote_that_is_never_closed_costs_its_line_only(tmp_path: Path):
    profile = read(write(tmp_path / "k.csv", row(), row(name='"open'), row(), row()))
    assert profile.kernels["line"].to_list() == [2, 4, 5]
    assert problem(profile, "ragged-row").line == 3


def test_a_comma_at_the_end_of_every_line_is_no_field(tmp_path: Path):
    profile = read(write(tmp_path / "k.csv", row() + ",", row() + ","))
    assert profile.kernels.height == 2 and profile.problems == ()


def test_blank_lines_count_as_lines_only(tmp_path: Path):
    profile = read(write(tmp_path / "k.csv", row(), "", row(), ""))
    assert profile.kernels["line"].to_list() == [2, 4] and profile.problems == ()


def test_a_header_that_comes_again_is_no_kernel(tmp_path: Path):
    profile = read(write(tmp_path / "k.csv", row(), ",".join(COLUMNS), row()))
    assert profile.kernels["line"].to_list() == [2, 4]
    assert problem(profile, "repeated-header").line == 3
    assert profile.kernels["mte2_ratio"].to_list() == [0.779, 0.779]


def test_windows_line_ends(tmp_path: Path):
    profile = read(write(tmp_path / "k.csv", row(), row(), end="\r\n"))
    assert profile.kernels["cube_utilization"].to_list() == [80.8, 80.8] and profile.problems == ()


def test_a_file_cut_off_in_a_row_keeps_the_rows_before(tmp_path: Path):
    path = write(tmp_path / "k.csv", row(), row())
    path.write_bytes(path.read_bytes()[:-60])
    profile = read(path)
    assert profile.kernels["line"].to_list() == [2]
    assert problem(profile, "ragged-row").line == 3


def test_no_newline_at_the_end(tmp_path: Path):
    path = write(tmp_path / "k.csv", row(), row())
    path.write_bytes(path.read_bytes().rstrip())
    assert read(path).kernels.height == 2


# -- encodings


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-8"])
def test_marked_encodings(tmp_path: Path, encoding: str):
    path = write(tmp_path / "k.csv", row(name="矩阵乘"))
    path.write_bytes(path.read_bytes().decode().encode(encoding))
    profile = read(path)
    assert profile.kernels["name"].to_list() == ["矩阵乘"]
    assert codes(profile) == (["wrong-encoding"] if encoding == "utf-16" else [])


def test_what_a_chinese_spreadsheet_program_saves(tmp_path: Path):
    path = write(tmp_path / "k.csv", row(name="矩阵乘"))
    path.write_bytes(path.read_bytes().decode().encode("gb18030"))
    profile = read(path)
    assert profile.kernels["name"].to_list() == ["矩阵乘"]
    assert "gb18030" in problem(profile, "wrong-encoding").message


def test_bytes_of_no_encoding_are_replaced_and_told(tmp_path: Path):
    path = write(tmp_path / "k.csv", row(name="NAME"), row())
    path.write_bytes(path.read_bytes().replace(b"NAME", b"A\xff\xff\x80"))
    profile = read(path)
    assert profile.kernels.height == 2
    assert codes(profile) == ["wrong-encoding"]


# -- layouts and kinds


def test_op_summary_names_are_the_same_columns(tmp_path: Path):
    one = read(write(tmp_path / "kernel_details.csv", row()))
    other = read(write(tmp_path / "op_summary_20250109.csv", row(), columns=SUMMARY))
    assert other.layout == "op_summary"
    assert other.kernels.equals(one.kernels)


def test_block_num_is_block_dim(tmp_path: Path):
    columns = renamed({"Block Dim": "Block Num", "Mix Block Dim": "Mix Block Num"})
    kernel = read(write(tmp_path / "k.csv", row(), columns=columns)).kernels.row(0, named=True)
    assert (kernel["block_dim"], kernel["mix_block_dim"]) == (24, 0)


@pytest.mark.parametrize("prefix", ["aic_mac", "mac", "aic_cube"])
def test_the_cube_ratio_has_three_names(tmp_path: Path, prefix: str):
    columns = renamed({"aic_mac_ratio": f"{prefix}_ratio"})
    assert read(write(tmp_path / "k.csv", row(), columns=columns)).kernels["mac_ratio"][0] == 0.122


def test_unprefixed_ratios_of_310p_and_910a(tmp_path: Path):
    columns = [*COLUMNS[:22], "mac_ratio", "mte1_ratio", "mte2_ratio", "mte3_ratio", "vec_ratio", "scalar_ratio"]
    line = ",".join([*(MATMUL[name] for name in COLUMNS[:22]), "0.1", "0.2", "0.3", "0.4", "0.5", "0.6"])
    profile = read(write(tmp_path / "k.csv", line, columns=columns))
    kernel = profile.kernels.row(0, named=True)
    names = ("mac_ratio", "mte1_ratio", "mte2_ratio", "aiv_mte3_ratio", "vec_ratio", "scalar_ratio")
    assert [kernel[name] for name in names] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert profile.kind == "pipe_utilization"


@pytest.mark.parametrize("lacking", ["Step Id", "Device_id", "Stream ID", "Wait Time(us)", "Mix Block Dim"])
def test_a_missing_column_is_null(tmp_path: Path, lacking: str):
    columns = [name for name in COLUMNS if name != lacking]
    profile = read(write(tmp_path / "k.csv", row(columns), columns=columns))
    ours = {"Step Id": "step", "Device_id": "device", "Stream ID": "stream", "Wait Time(us)": "wait_us"}
    assert profile.kernels[ours.get(lacking, "mix_block_dim")].to_list() == [None]
    assert profile.problems == ()


METRICS = {
    "arithmetic_utilization": ["aicore_time(us)", "aic_mac_fp16_ratio", "aic_mac_int8_ratio", "aiv_vec_fp32_ratio"],
    "memory_l0": ["aicore_time(us)", "aic_l0a_read_bw(GB/s)", "aic_l0b_write_bw(GB/s)"],
    "memory_ub": ["aiv_time(us)", "aiv_ub_read_bw_vector(GB/s)"],
    "memory": ["aiv_time(us)", "aic_main_mem_read_bw(GB/s)", "aiv_ub_read_bw(GB/s)"],
    "l2_cache": ["aicore_time(us)", "aic_r0_read_cache_hit"],
    "resource_conflict": ["aiv_time(us)", "aiv_vec_bank_cflt_ratio"],
    "no_metrics": [],
}


@pytest.mark.parametrize("kind", METRICS)
def test_the_metric_group_is_told_by_its_columns(tmp_path: Path, kind: str):
    columns = [*COLUMNS[:22], *METRICS[kind]]
    profile = read(write(tmp_path / "renamed_by_a_wrapper.csv", row(columns), columns=columns))
    assert (profile.kind, profile.has_shapes, profile.has_ratios) == (kind, True, False)


def test_level0_has_no_shapes(tmp_path: Path):
    cells = {"type": "N/A", "core": "N/A"}
    profile = read(write(tmp_path / "k.csv", row(LEVEL0, **cells), row(LEVEL0, **cells), columns=LEVEL0))
    assert (profile.kind, profile.has_shapes, profile.has_ratios) == ("level0", False, False)
    assert profile.kernels["op_type"].to_list() == [None, None]


def test_a_column_that_comes_twice(tmp_path: Path):
    profile = read(write(tmp_path / "k.csv", row() + ",Other", columns=[*COLUMNS, "Name"]))
    assert profile.kernels["name"].to_list() == ["aclnnMatmul_MatMulV2"]
    assert "Name" in problem(profile, "column-twice").message


# -- devices and slices


def test_one_profile_per_device_of_a_file(tmp_path: Path):
    profiles = read_profiles(write(tmp_path / "k.csv", *(row(device=device) for device in "1011"))).profiles
    assert [(profile.device, profile.kernels["line"].to_list()) for profile in profiles] == [(0, [3]), (1, [2, 4, 5])]


def test_slices_are_one_profile_in_their_order(tmp_path: Path):
    for number in (10, 2, 0):
        rows = [row(start=f"17364139715589{number:02d}.{i}") for i in range(2)]
        write(tmp_path / f"op_summary_slice_{number}_20250109.csv", *rows, columns=SUMMARY)
    profile = read(tmp_path)
    assert profile.base_us == 1736413971558900
    assert profile.kernels["start_us"].to_list() == [0.0, 0.1, 2.0, 2.1, 10.0, 10.1]
    assert profile.place(4) == f"{tmp_path / 'op_summary_slice_10_20250109.csv'}:2"


def test_a_broken_slice_costs_only_itself(tmp_path: Path):
    write(tmp_path / "op_summary_slice_0_1.csv", row(), columns=SUMMARY)
    write(tmp_path / "op_summary_slice_1_1.csv", columns=SUMMARY)
    found = read_profiles(tmp_path)
    assert found.profiles[0].kernels.height == 1
    assert [p.code for p in found.problems] == ["no-kernels"]


# -- nothing to use


def refused(path: Path) -> str:
    with pytest.raises(RefusedError) as refusal:
        read_profiles(path)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"\n\n \n", "empty"),
        (b"\x7fELF\x02\x01\x00\x00\x00,\x00", "not text"),
        (b"OP Type,Core Type,Count,Total Time(us)\nMatMul,AI_CORE,1,2\n", "Start Time(us), Duration(us) missing"),
        (b'[{"ph": "X"}]', "JSON"),
    ],
)
def test_what_is_no_kernel_table_is_described(tmp_path: Path, content: bytes, told: str):
    (tmp_path / "some.csv").write_bytes(content)
    for path in (tmp_path, tmp_path / "some.csv"):
        text = refused(path)
        assert "some.csv" in text and told in text
        assert "Level1" in text and "PipeUtilization" in text


def test_a_header_without_kernels_is_refused(tmp_path: Path):
    assert "a header but no kernel" in refused(write(tmp_path / "k.csv"))


def test_only_broken_rows_are_refused_with_their_lines(tmp_path: Path):
    text = refused(write(tmp_path / "k.csv", "1,2,3", "1,2,3"))
    assert "2 lines (2, 3): each has 3 fields instead of 47" in text


def test_an_empty_folder_is_refused(tmp_path: Path):
    assert "no CSV file" in refused(tmp_path)


def test_a_run_that_was_never_exported_is_refused_with_the_command(tmp_path: Path):
    (tmp_path / "a_1_2_ascend_pt" / "PROF_000001_1_A" / "device_0").mkdir(parents=True)
    assert "analyse(" in refused(tmp_path)


def test_a_path_that_does_not_exist_names_its_neighbour(tmp_path: Path):
    write(tmp_path / "kernel_details.csv", row())
    assert "did you mean" in refused(tmp_path / "kernel_detail.csv")


@pytest.mark.parametrize("path", ["x" * 5000, "gone/" * 20, "~nobody-of-that-name/x", "a\0b"])
def test_impossible_paths(path: str):
    with pytest.raises(RefusedError) as refusal:
        read_profiles(path)
    assert [problem.code for problem in refusal.value.problems] == ["profile-not-found"]


# -- the trace fills in


def test_streams_come_from_the_trace_only_when_asked(tmp_path: Path):
    columns = [name for name in COLUMNS if name != "Stream ID"]
    path = write(tmp_path / "kernel_details.csv", row(columns), columns=columns)
    (tmp_path / "trace_view.json").write_text(
        '[{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "Ascend Hardware"}},'
        '{"ph": "X", "name": "aclnnMatmul_MatMulV2", "pid": 7, "tid": 5, "ts": "1736413971558972.912", "dur": 1}]'
    )
    assert read(path).kernels["stream"].to_list() == ["5"]
    (profile,) = read_profiles(path, ReadOptions(trace=False)).profiles
    assert profile.kernels["stream"].to_list() == [None]
    assert profile.kernels["stream"].dtype == pl.String
