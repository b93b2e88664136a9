"""Folders as profilers leave them: which files are tables, of which rank."""

import os
from pathlib import Path

import pytest

from models.problems import RefusedError
from pipeline.profile.reader import read_profiles
from tests.pipeline.profile.files import SUMMARY, row, write

RUN = "host_4242_20250109072403_ascend_pt"


def found(path: Path) -> list[tuple[int | None, str]]:
    """Rank of every profile, and its file relative to the path."""
    profiles = read_profiles(path).profiles
    return [(profile.rank, profile.source.relative_to(path).as_posix()) for profile in profiles]


def run(folder: Path, rank: int | None = None, info: str | None = None) -> Path:
    """A run as torch_npu writes it."""
    write(folder / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv", row())
    if rank is not None:
        (folder / f"profiler_info_{rank}.json").write_text(info or f'{{"rank_id": {rank}}}')
    return folder


@pytest.mark.parametrize("inside", ["", "ASCEND_PROFILER_OUTPUT", "ASCEND_PROFILER_OUTPUT/kernel_details.csv"])
def test_the_rank_is_in_profiler_info_beside_the_output(tmp_path: Path, inside: str):
    (profile,) = read_profiles(run(tmp_path / RUN, rank=5) / inside).profiles
    assert profile.rank == 5


def test_a_broken_profiler_info_still_has_a_name(tmp_path: Path):
    found = read_profiles(run(tmp_path / RUN, rank=5, info='{"rank_id": '))
    assert found.profiles[0].rank == 5
    assert [problem.code for problem in found.problems] == ["profiler-info-unreadable"]


@pytest.mark.parametrize(
    "name", ["rank3_ascend_pt", "dp0_pp0_tp3_ep3_rank3_4242_2025_ascend_pt", "Rank_3", "worker-rank-3.old"]
)
def test_the_rank_is_in_the_folder_name(tmp_path: Path, name: str):
    assert found(run(tmp_path / name)) == [(3, "ASCEND_PROFILER_OUTPUT/kernel_details.csv")]


@pytest.mark.parametrize("name", ["franked3", "frank3_x", "rankings", RUN])
def test_a_name_that_only_looks_like_a_rank(tmp_path: Path, name: str):
    assert read_profiles(run(tmp_path / name)).profiles[0].rank is None


def test_a_parent_of_many_ranks_in_order_of_rank(tmp_path: Path):
    for rank in (10, 2, 0):
        run(tmp_path / "deep" / "er" / f"{rank}_{RUN}", rank=rank)
    assert [rank for rank, _ in found(tmp_path)] == [0, 2, 10]


def test_two_captures_of_one_rank_are_told_apart(tmp_path: Path):
    run(tmp_path / "before" / "rank0", rank=0)
    run(tmp_path / "after" / "rank0", rank=0)
    run(tmp_path / "after" / "rank1", rank=1)
    labels = [profile.label for profile in read_profiles(tmp_path).profiles]
    output = "ASCEND_PROFILER_OUTPUT"
    assert labels == [
        f"rank 0, device 0 (after/rank0/{output})",
        f"rank 0, device 0 (before/rank0/{output})",
        "rank 1, device 0",
    ]


def test_a_renamed_table_is_found_by_its_columns_and_others_are_not(tmp_path: Path):
    write(tmp_path / "step3.CSV", row())
    (tmp_path / "op_statistic.csv").write_text("OP Type,Core Type,Count\nMatMul,AI_CORE,1\n")
    (tmp_path / "notes.csv").write_bytes(b"\x00\xff")
    assert found(tmp_path) == [(None, "step3.CSV")]


def test_links_that_lead_back_are_followed_once(tmp_path: Path):
    run(tmp_path / RUN)
    (tmp_path / RUN / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "copy.csv").symlink_to(tmp_path / RUN / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv")
    assert len(found(tmp_path)) == 1


def test_a_linked_run_is_found(tmp_path: Path):
    run(tmp_path / "elsewhere" / RUN)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "run").symlink_to(tmp_path / "elsewhere" / RUN, target_is_directory=True)
    assert len(found(tmp_path / "here")) == 1


def test_msprofs_table_of_a_run_is_the_same_run(tmp_path: Path):
    """torch_npu's has the steps and is taken; alone, msprof's is."""
    output = tmp_path / RUN / "PROF_000001_2025_ABC" / "mindstudio_profiler_output"
    write(output / "op_summary_20250109072403.csv", row(), columns=SUMMARY)
    assert [name.rsplit("/", 1)[1] for _, name in found(tmp_path)] == ["op_summary_20250109072403.csv"]
    run(tmp_path / RUN, rank=1)
    assert found(tmp_path) == [(1, f"{RUN}/ASCEND_PROFILER_OUTPUT/kernel_details.csv")]


def test_of_two_exports_of_one_run_the_later_counts(tmp_path: Path):
    output = tmp_path / "PROF_1" / "mindstudio_profiler_output"
    for time, slices in (("20250109", ("", "")), ("20250110", ("slice_0_", "slice_1_"))):
        for part in set(slices):
            write(output / f"op_summary_{part}{time}.csv", row(), columns=SUMMARY)
    profiles = read_profiles(tmp_path)
    assert [file.name for file in profiles.profiles[0].files] == [
        "op_summary_slice_0_20250110.csv",
        "op_summary_slice_1_20250110.csv",
    ]
    assert len(profiles.profiles) == 1
    assert [problem.code for problem in profiles.problems] == ["earlier-export"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path):
    run(tmp_path / RUN)
    (tmp_path / "secret").mkdir(mode=0)
    assert [problem.code for problem in read_profiles(tmp_path).problems] == ["unreadable-folder"]


def test_a_pipe_is_not_opened(tmp_path: Path):
    os.mkfifo(tmp_path / "kernel_details.csv")
    with pytest.raises(RefusedError):
        read_profiles(tmp_path)
    with pytest.raises(RefusedError, match="neither a file nor a folder"):
        read_profiles(tmp_path / "kernel_details.csv")
