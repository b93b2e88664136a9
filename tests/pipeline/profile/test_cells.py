"""The short way for clean files and the exact way for all others give the same cells."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.profile.cells import _count_lines, read_clean, read_lines
from pipeline.profile.columns import Layout, recognise
from pipeline.profile.lines import parseable
from tests.pipeline.profile.files import COLUMNS, row, write

SMALL = ["Name", "Start Time(us)", "Duration(us)", "Block Dim"]


def layout(columns: list[str]) -> Layout:
    found = recognise(columns)
    assert found is not None
    return found


def both(path: Path, columns: list[str]) -> tuple[pl.DataFrame | None, pl.DataFrame]:
    """Cells read the short way, if that is possible, and the exact way."""
    data = path.read_bytes()
    lines = parseable(data, data.index(b"\n") + 1, 1, len(columns))
    return read_clean(path, layout(columns), 1), read_lines(lines, layout(columns))


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS[:-1], [*COLUMNS, "Other"]])
def test_a_clean_file_goes_the_short_way(tmp_path: Path, columns: list[str]):
    rows = [row(columns, stream="N/A", mte2="N/A"), row(columns), row(columns, shapes='""""""')]
    short, exact = both(write(tmp_path / "k.csv", *rows, columns=columns), columns)
    assert short is not None
    assert short.cast(exact.schema).equals(exact)
    assert short["line"].to_list() == [2, 3, 4]


@pytest.mark.parametrize(
    "body",
    [
        *("a,1,2,3\na,1,2\n", "a,1,2,3\na,1,2,3,4\n", "a,1,2,3\n\na,1,2,3\n", 'a,1,2,3\n"a,1,2,3\na,1,2,3\n'),
        *("a,1,2,3\na,1,x,3\n", 'a,1,2,3\n"a\nb",1,2,3\n', "a,1,2,\n", 'a,1,2,3\na,1,2,"3'),
    ],
)
def test_anything_doubtful_does_not(tmp_path: Path, body: str):
    path = tmp_path / "k.csv"
    path.write_text(",".join(SMALL) + "\n" + body)
    assert both(path, SMALL)[0] is None


@pytest.mark.parametrize("end", ['"', '"\n', '"\r\n', 'a,1,2,"', 'a,1,2,"\n', 'a,1,2,"\r\n', 'x"y,1,2,"\na,1,2,3\n'])
def test_polars_is_not_asked_for_what_makes_it_panic(tmp_path: Path, end: str, capfd: pytest.CaptureFixture[str]):
    """A line that ends in a field of one quote: found by `make fuzz`."""
    path = tmp_path / "k.csv"
    path.write_text(",".join(SMALL) + "\na,1,2,3\n" + end, newline="")
    assert both(path, SMALL)[0] is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("block", range(1, 12))
def test_lines_are_counted_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int):
    monkeypatch.setattr("pipeline.profile.cells.BLOCK", block)
    path = tmp_path / "k.csv"
    for body, count in (
        ("ab\n\ncd,e\n", 3),
        ("ab\n\ncd,e", 3),
        ("", 0),
        ('ab\ncd,"\n', 0),
        ('ab\n"\r\ncd', 0),
        ('a\nb,"', 0),
    ):
        path.write_text(body, newline="")
        assert _count_lines(path) == count


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(['"', ",", "\n", "\n", "1", "1", "N/A", "x", "\r\n", "a,1,2,3\n", "a,1,2,3\n"]), max_size=30
    )
)
def test_the_two_ways_agree_whatever_is_in_the_file(tmp_path: Path, pieces: list[str]):
    path = tmp_path / "k.csv"
    path.write_text(",".join(SMALL) + "\n" + "".join(pieces), newline="")
    short, exact = both(path, SMALL)
    if short is not None:
        assert short["line"].to_list() == exact["line"].to_list()
        numbers = short.with_columns(pl.col("duration_us", "block_dim").cast(pl.Float64, strict=False))
        assert numbers.equals(exact.with_columns(pl.col("duration_us", "block_dim").cast(pl.Float64, strict=False)))
