"""Only the edited functions change; everything else stays as it is, to the byte."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transforms.text_models import load_text, plan_for, rewrite
from transforms.prefetch_source import prefetch_source, unified_diff
from transforms.registry import TRANSFORMS
from transforms.source_file import SourceFile, lines_of, sometimes_assigned

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
    assert unified_diff("a\nb", "a\nc", "f.py").endswith(
        "-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
    )


def test_attributes_that_are_set_on_some_paths_only() -> None:
    text = (
        "class A:\n    def __init__(self, c):\n        self.a = 1\n        if c:\n            self.b = 1\n            self.c = 1\n"
        "        else:\n            self.c = 2\n        for _ in c:\n            self.d = 1\n        with c:\n            self.e: int = 1\n"
    )
    function = SourceFile(Path("a.py"), text).function("A.__init__")
    assert function is not None
    assert sometimes_assigned(function) == {"b", "d"}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(["    x = 1", "    # comment", "", "    if x:\n        y = (1,\n  2)", '    s = """\n a\n"""']),
        max_size=8,
    )
)
def test_a_parsed_function_prints_as_it_was(lines: list[str]) -> None:
    text = (
        "class A:\n  def f(self, x):\n"
        + "\n".join([*(line.replace("    ", "      ", 1) for line in lines), "      return x"])
        + "\n"
    )
    source = SourceFile(Path("a.py"), text)
    definition = source.function("A.f")
    assert definition is not None
    parsed = source.parsed(definition)
    assert parsed.code(parsed.node) == "".join(source.lines[definition.lineno - 1 :])
