"""Where a key stands: lines in block and flow style, inheritance, and what comes from the command line."""

from pathlib import Path

import pytest

from pipeline.yaml_source import YamlSource

TEXT = """\
name: x
prefetch:
  coefficient: 0.5
  only: [a,
    b]
  targets:
    a:
      weight: layers.{i}.x
    b: {weight: "layers.{i}.y",
        max_size: 18 MiB}
    # c comes later
    c:
      offset: ${prefetch.coefficient}
"""


@pytest.fixture
def source(tmp_path: Path) -> YamlSource:
    file = tmp_path / "r.yaml"
    file.write_text(TEXT)
    return YamlSource(file)


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("recipe.name", 1),
        ("name", 1),
        ("recipe.prefetch", 2),
        ("recipe.prefetch.coefficient", 3),
        ("recipe.prefetch.only.1", 5),
        ("recipe.prefetch.targets.a.weight", 8),
        ("recipe.prefetch.targets.b.weight", 9),
        ("recipe.prefetch.targets.b.max_size", 10),
        ("recipe.prefetch.targets.c.offset", 13),
        ("recipe.prefetch.targets.d", None),
        ("recipe.prefetch.only.7", None),
        ("recipe.name.deeper", None),
    ],
)
def test_lines_are_found_in_block_and_flow_style(source: YamlSource, key: str, line: int | None) -> None:
    assert source.line(key) == line


def test_another_value_than_the_files_comes_from_the_command_line(source: YamlSource) -> None:
    key = "recipe.prefetch.coefficient"
    assert source.place(key, 0.5) == (str(source.path), 3)
    assert source.place(key, 0.7) == (None, None)
    assert source.place("recipe.prefetch.targets.new") == (None, None)


def test_an_interpolated_value_belongs_to_its_file(source: YamlSource) -> None:
    assert source.place("recipe.prefetch.targets.c.offset", 0.5) == (str(source.path), 13)


def test_an_inherited_key_is_found_in_its_own_file(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "recipe" / "m"
    folder.mkdir(parents=True)
    base, child = folder / "base.yaml", folder / "child.yaml"
    base.write_text("name: base\nprefetch:\n  coefficient: 0.5\n  enabled: true\n")
    child.write_text("defaults:\n  - /recipe/m/base@_here_\n  - _self_\nprefetch:\n  coefficient: 7\n")
    source = YamlSource(child)
    assert source.place("recipe.prefetch.coefficient", 7) == (str(child), 5)
    assert source.place("recipe.prefetch.enabled", True) == (str(base.resolve()), 4)


@pytest.mark.parametrize("text", ["a: [", "\t\tx", ""])
def test_an_unreadable_file_only_has_no_lines(tmp_path: Path, text: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(text)
    assert YamlSource(file).place("recipe.a", 1) == (None, None)
    assert YamlSource(tmp_path / "absent.yaml").line("recipe.a") is None
