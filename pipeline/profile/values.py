"""Text of a kernel table to typed columns: exact starts, numbers or null, shapes without literal quotes."""

from collections.abc import Sequence
from decimal import Decimal

import polars as pl

from models.problems import Problem
from pipeline.profile.columns import Layout
from pipeline.profile.rows import SCHEMA

SHOWN = 5  # line numbers that a message names
EXACT = pl.Decimal(38, 6)  # microseconds with 6 decimals
LATEST_US = 10**16  # a later start is in the year 2286
DAY_US = 86_400_000_000  # further than this from the median start no kernel of the same run is
PADDING = " \t\r\"'"


def table(raw: pl.DataFrame, layout: Layout, file: str) -> tuple[pl.DataFrame, int, list[Problem]]:
    """Kernels with starts relative to a base; the base in integer microseconds; what was not a number or had no time.

    A row without a start or a duration is left out; any other cell that isn't what its column holds becomes null.
    Both are reported, with line numbers.

    Args:
        raw: what `cells.read_clean` or `cells.read_lines` gave.
        layout: the file's columns.
        file: its name, for the messages.
    """
    problems: list[Problem] = []
    again = raw["start_us"].str.contains(r"(?i)start time\s*\(us\)").fill_null(False)
    if again.any():
        problems.append(_told(file, raw.filter(again)["line"], "repeated-header", "repeats the header"))
        raw = raw.filter(~again)
    words = [_word(name) for name in layout.index if SCHEMA[name] == pl.String()]
    kinds = {name: SCHEMA[name] for name in layout.index if name != "start_us" and SCHEMA[name] != pl.String()}
    absent = [pl.lit(None, kind).alias(name) for name, kind in SCHEMA.items() if name not in raw.columns]
    numbers = [_number(name, kind) for name, kind in kinds.items()]
    frame = raw.with_columns(
        *words, *numbers, *absent, pl.col("start_us").str.strip_chars(PADDING).cast(EXACT, strict=False)
    )
    before, after = raw.null_count().row(0, named=True), frame.null_count().row(0, named=True)
    lost = [name for name in kinds if after[name] > before[name]]
    frame = frame.with_columns(*(_second_try(raw[name], kinds[name], raw["line"], file, problems) for name in lost))
    if after["start_us"] > before["start_us"]:
        frame = frame.with_columns(_inexact(frame["start_us"], raw["start_us"]))
    del raw
    timed = (frame["start_us"].is_between(0, LATEST_US) & (frame["duration_us"] >= 0)).fill_null(False)
    if not timed.all():
        problems.append(
            _told(file, frame.filter(~timed)["line"], "row-without-time", "has no usable start or duration")
        )
        frame = frame.filter(timed)
    frame, base = _rebased(frame, file, problems)
    return frame.select(*SCHEMA), base, problems


def _word(name: str) -> pl.Expr:
    """Cells without padding and literal quotes. An empty shape is a scalar's, any other empty cell is absent."""
    text = pl.col(name).str.strip_chars(PADDING)
    return text if name.endswith("_shapes") else pl.when(text != "").then(text).alias(name)


def _number(name: str, kind: pl.DataType) -> pl.Expr:
    """Finite numbers of a column, null where there is none."""
    number = pl.col(name).cast(kind, strict=False)
    return pl.when(number.is_finite()).then(number).alias(name) if kind == pl.Float64() else number


def _second_try(cells: pl.Series, kind: pl.DataType, lines: pl.Series, file: str, problems: list[Problem]) -> pl.Series:
    """The same for a column in which some cell was none: it may be padded, empty, or an integer written as a float."""
    text = cells.cast(pl.String()).str.strip_chars(PADDING)
    values = text.cast(pl.Float64(), strict=False)
    values = values.set(~values.is_finite().fill_null(True), None).cast(kind, strict=False)
    bad = values.is_null() & (text != "").fill_null(False)
    if bad.any():
        what = f"has no number in column {cells.name}: {text.filter(bad)[0][:40]!r}"
        problems.append(_told(file, lines.filter(bad), "not-a-number", what))
    return values


def _inexact(exact: pl.Series, cells: pl.Series) -> pl.Series:
    """Starts, with those that polars does not take, such as one with more than 6 decimals, taken by Python.

    A float64 would not do: an epoch in microseconds is good for 0.25 us in it.
    """
    left = exact.is_null() & cells.is_not_null()
    again = [_decimal(cell) for cell in cells.filter(left).str.strip_chars(PADDING)]
    return exact.scatter(left.arg_true(), pl.Series(again, dtype=EXACT))


def _decimal(text: str) -> Decimal | None:
    try:
        value = Decimal(text)
        return value.quantize(Decimal("1e-6")) if value.is_finite() and abs(value) <= LATEST_US else None
    except ArithmeticError:  # no number, or one out of all bounds
        return None


def _rebased(frame: pl.DataFrame, file: str, problems: list[Problem]) -> tuple[pl.DataFrame, int]:
    """Starts less the integer microsecond of the earliest, as float64; a start far from all others is left out."""
    if not frame.height:
        return frame.with_columns(pl.col("start_us").cast(pl.Float64())), 0
    exact = frame["start_us"]
    middle = exact.sort()[exact.len() // 2]
    near = ((exact - middle).cast(pl.Float64()).abs() < DAY_US).fill_null(False)
    if not near.all():
        problems.append(_told(file, frame.filter(~near)["line"], "start-far-off", "starts over a day from the others"))
        frame = frame.filter(near)
        exact = frame["start_us"]
    earliest = exact.min()
    base = int(earliest) if isinstance(earliest, Decimal) else 0
    relative = (exact - Decimal(base)).cast(pl.Float64()).alias("start_us")
    return frame.with_columns(relative), base


def _told(file: str, lines: pl.Series, code: str, what: str) -> Problem:
    return line_problem(file, lines.to_list(), code, what)


def line_problem(file: str, lines: Sequence[int], code: str, what: str, fix: str = "") -> Problem:
    """One warning for all lines with the same trouble: how many, the first few by number."""
    few = ", ".join(map(str, lines[:SHOWN])) + (", ..." if len(lines) > SHOWN else "")
    message = f"line {few} {what}" if len(lines) == 1 else f"{len(lines)} lines ({few}): each {what}"
    return Problem("warning", code, message, fix, file=file, line=lines[0])
