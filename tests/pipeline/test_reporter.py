"""Which file and line a problem is given."""

from pathlib import Path

import pytest

from models.problems import Problem
from pipeline.reporter import located

TEXT = "name: one_die\nbatch_size: four\ncore_limits:\n  moe: [8]\n"


def problem_at(key: str, tmp_path: Path, value: object = "four") -> Problem:
    path = tmp_path / "one_die.yaml"
    path.write_text(TEXT)
    config = {"deployment": {"name": "one_die", "batch_size": value, "core_limits": {"moe": [8]}}}
    return located(Problem("error", "x", "wrong", "", key, str(path)), config, {"deployment": path})


@pytest.mark.parametrize(
    ("key", "line"), [("deployment.batch_size", 2), ("deployment.core_limits.moe", 4), ("deployment.core_limits", 3)]
)
def test_a_value_of_the_file_has_its_line(tmp_path: Path, key: str, line: int) -> None:
    assert problem_at(key, tmp_path).line == line


def test_a_value_of_the_command_line_has_no_file(tmp_path: Path) -> None:
    found = problem_at("deployment.batch_size", tmp_path, 0)
    assert (found.file, found.line) == (None, None)


def test_a_key_that_is_missing_has_the_place_of_its_parent(tmp_path: Path) -> None:
    assert problem_at("deployment.core_limits.main", tmp_path).line == 3
    top = problem_at("deployment.quant", tmp_path)
    assert top.file is not None and top.line is None


def test_a_key_that_was_deleted_on_the_command_line_has_no_file(tmp_path: Path) -> None:
    path = tmp_path / "one_die.yaml"
    path.write_text(TEXT)
    problem = Problem("error", "missing-key", "missing", "", "deployment.name", str(path))
    assert located(problem, {"deployment": {}}, {"deployment": path}).file is None


@pytest.mark.parametrize("key", [None, "verify.graph"])
def test_what_is_of_no_group_stays(tmp_path: Path, key: str | None) -> None:
    problem = Problem("error", "x", "wrong", "", key, "f.yaml")
    assert located(problem, {}, {}) == problem
