"""Defaults lists: an entry that names no file, or that forgets where to go, is told with its file and line."""

from pathlib import Path

import pytest

from models.problems import Problem, RefusedError
from pipeline.compose import CONF, compose_grid
from pipeline.overrides import read_overrides
from tests.pipeline.cli_fixtures import FILES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def refused(folder: Path, *defaults: str) -> Problem:
    lines = "".join(f"  - {entry}\n" for entry in defaults)
    (folder / "recipe/toy/mine.yaml").write_text(f"# Mine.\ndefaults:\n{lines}name: toy/mine\n")
    with pytest.raises(RefusedError) as error:
        compose_grid(read_overrides(["recipe=toy/mine"])[0], False, (folder, CONF))
    return error.value.problems[0]


@pytest.mark.parametrize(
    ("defaults", "line"), [(("_self_", "/recipe/toy/decoed@_here_"), 4), (("toy/decoed", "_self_"), 3)]
)
def test_an_unknown_entry_has_file_and_line(folder: Path, defaults: tuple[str, ...], line: int) -> None:
    problem = refused(folder, *defaults)
    assert (problem.code, problem.file, problem.line) == (
        "unknown-default",
        str(folder / "recipe/toy/mine.yaml"),
        line,
    )
    assert "`recipe/toy/decoed`" in problem.message and "toy/decode" in problem.message.split("no such file")[1]


def test_an_unknown_entry_of_an_inherited_file(folder: Path) -> None:
    (folder / "recipe/toy/base.yaml").write_text("defaults: [/recipe/toy/gone@_here_]\nname: toy/base\n")
    problem = refused(folder, "/recipe/toy/base@_here_", "_self_")
    assert (problem.file, problem.line) == (str(folder / "recipe/toy/base.yaml"), 1)


def test_an_entry_without_here_is_hinted_at(folder: Path) -> None:
    problem = refused(folder, "/recipe/toy/decode", "_self_")
    assert problem.code == "no-model" and "`/recipe/toy/decode@_here_`" in problem.fix
    assert (problem.file, problem.line) == (str(folder / "recipe/toy/mine.yaml"), 3)
    assert "@_here_" not in refused(folder, "_self_").fix
