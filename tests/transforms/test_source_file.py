"""Only the edited functions change; everything else stays as it is, to the byte."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transforms.text_models import load_text, plan_for, rewrite
from transforms.prefetch_source import prefetch_source
from transforms.registry import TRANSFORMS
from transforms.source import unified_diff
from transforms.source_file import SourceFile, lines_of, maybe_none, sometimes_assigned

BEFORE = TRANSFORMS["prefetch.source"].examples[0].before
TARGETS = {"layers.{i}.mlp.weight": "layers.{i}.attention"}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("# residual", "# residual \x0c with a form feed\n        "),
        lambda text: text + '\n\nTEXT = """\n  untouched   \n"""  \n',
        lambda text: text.replace("    ", "  "),
        lambda text: text.replace("    ", "\t"),
    ],
    ids=["CRLF", "no line end at the end", "form feed", "trailing spaces", "two spaces", "tabs"],
)
def test_other_lines_keep_their_bytes(change, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    before = change(BEFORE)
    after = rewrite(before, TARGETS, tmp_path)
    kept = lines_of(after)
    for line in lines_of(before):
        assert line in kept, repr(line)
    assert ("\r\n" in before) == ("\r\n" in after) and after.replace("\r\n", "").count("\r") == 0


def test_an_empty_plan_changes_nothing(tmp_path: Path) -> None:
    loaded = load_text(BEFORE, tmp_path)
    plan = plan_for(loaded, {})
    result = prefetch_source(loaded, plan)
    assert (result.after, result.diff) == (BEFORE, "")


def test_a_missing_line_end_is_shown_as_git_does() -> None:
    note = "\\ No newline at end of file\n"
    assert unified_diff("a\nb", "a\nc", "f.py").endswith(f"-b\n{note}+c\n{note}")


SOMETIMES = """\
class A:
    def __init__(self, c):
        self.a = 1
        if c:
            self.b = 1
            self.c = 1
        else:
            self.c = 2
        for _ in c:
            self.d = 1
        with c:
            self.e: int = 1
"""


def test_attributes_that_are_set_on_some_paths_only() -> None:
    function = SourceFile(Path("a.py"), SOMETIMES).function("A.__init__")
    assert function is not None
    assert sometimes_assigned(function) == {"b", "d"}


def test_a_registered_none_is_an_attribute_that_may_be_none() -> None:
    text = """
class A:
    def __init__(self, some):
        if some:
            self.a = 1
        else:
            self.register_parameter("a", None)
"""
    function = SourceFile(Path("a.py"), text).function("A.__init__")
    assert function is not None
    assert sometimes_assigned(function) == set()
    assert maybe_none(function) == {"a"}


LINES = [
    "      x = 1",
    "      # comment",
    "",
    "      if x:\n        y = (1,\n  2)",
    '      s = """\n a\n"""',
    "      z = x \\\n    + 1",
]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=8))
def test_a_parsed_function_prints_as_it_was(lines: list[str]) -> None:
    text = "\n".join(["class A:", "  def f(self, x):", *lines, "      return x", ""])
    source = SourceFile(Path("a.py"), text)
    definition = source.function("A.f")
    assert definition is not None
    parsed = source.parsed(definition)
    assert parsed.code(parsed.node) == "".join(source.lines[definition.lineno - 1 :])


def test_the_line_length_is_that_of_the_tree_not_of_one_that_holds_its_environment(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 101\n")
    installed = tmp_path / ".venv" / "site-packages" / "package"
    installed.mkdir(parents=True)
    line = f"x = {'1' * 93}\n"
    assert SourceFile(tmp_path / "model.py", line).width == 101
    assert SourceFile(installed / "model.py", line).width == 97
