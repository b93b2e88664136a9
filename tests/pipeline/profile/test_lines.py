"""Lines of a table judged one by one: exactly those that every CSV parser reads the same way are passed on."""

import csv
import io

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.profile.lines import parseable

HEADER = b"a,b,c\n"
CELLS = st.text(st.sampled_from('x1,;"\t \0é'), max_size=6)


def judged(body: bytes, fields: int = 3):
    return parseable(HEADER + body, len(HEADER), 1, fields)


def parsed(data: bytes, fields: int = 3) -> list[tuple[str, ...]]:
    schema = {f"c{at}": pl.String() for at in range(fields)}
    return pl.read_csv(data, has_header=False, skip_lines=1, schema=schema, empty_string_is_null=False).rows()


def test_right_lines_are_passed_on_untouched():
    body = b'1,2,3\n"4,""5",6,\n'
    lines = judged(body)
    assert lines.data == HEADER + body
    assert lines.numbers.tolist() == [2, 3] and lines.ragged == []


def test_wrong_lines_are_counted_not_passed_on():
    lines = judged(b'1,2,3\n1,2\n1,2,3,4\n"1,2,3\nx"y,2,3\n\n,,\n1,2,3,\n')
    assert lines.ragged == [(3, 2), (4, 4), (5, -1)]
    assert lines.numbers.tolist() == [2, 6, 8, 9]  # a quote inside a field is a character; a last empty field is none
    assert parsed(lines.data) == [("1", "2", "3"), ('x"y', "2", "3"), ("", "", ""), ("1", "2", "3")]


def test_a_quoted_newline_breaks_its_two_lines_only():
    lines = judged(b'1,2,3\n1,"2\n2",3\n1,2,3\n')
    assert lines.numbers.tolist() == [2, 5]
    assert lines.ragged == [(3, -1), (4, 2)]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(CELLS, min_size=1, max_size=5), max_size=6), st.booleans())
def test_what_is_passed_on_is_what_was_written(rows: list[list[str]], quoted: bool):
    """Rows of three fields come through whole and in order, with their line numbers, whatever is in them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL).writerows(rows)
    lines = judged(text.getvalue().encode())
    right = [(at, row) for at, row in enumerate(rows, 2) if len(row) == 3 or (len(row) == 4 and not row[3].strip())]
    blank = [at for at, row in enumerate(rows, 2) if not any(cell.strip() for cell in row)]
    assert lines.numbers.tolist() == [at for at, _ in right]
    if right:
        assert [list(row) for row in parsed(lines.data)] == [row[:3] for _, row in right]
    told = [line for line, _ in lines.ragged]
    assert told == [at for at, row in enumerate(rows, 2) if at not in dict(right) and at not in blank]


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from('x1,"\n'), max_size=60))
def test_any_text_is_parsed_without_loss_of_lines(text: str):
    """Polars reads as many rows from what is passed on as there are line numbers: nothing swallows a neighbour."""
    lines = judged(text.encode())
    if len(lines.numbers):
        assert len(parsed(lines.data)) == len(lines.numbers)
