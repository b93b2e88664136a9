"""Cells of a kernel table as polars parses them, with line numbers; numbers are numbers where every cell is one.

A clean file goes straight from the disk to polars. Whether it is clean is seen afterwards; on any doubt the file is
read again line by line (`lines`), which is exact and slower.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from pipeline.profile.columns import Layout
from pipeline.profile.lines import Lines
from pipeline.profile.rows import SCHEMA

ABSENT = "N/A"
COMMA, QUOTE, NEWLINE, RETURN = b',"\n\r'
BLOCK = 1 << 22  # bytes


def read_clean(file: Path, layout: Layout, skip: int) -> pl.DataFrame | None:
    """The columns we read, with their lines; None unless each line after the first `skip` is one whole row.

    Polars itself raises at a line with more fields and fills up one with fewer, so that its last cell is empty. A
    quote without its partner swallows newlines, so that there are fewer rows than lines.
    """
    last = f"column_{layout.fields}"
    names = _names(layout)
    read = partial(
        pl.read_csv,
        file,
        has_header=False,
        skip_lines=skip,
        columns=list(dict.fromkeys([*names, last])),
        null_values={name: ABSENT for name in names if name != last},
        empty_string_is_null=False,
        glob=False,
    )
    lines = _count_lines(file)
    try:
        frame = read(schema={**_text(layout), **_numbers(names, but=last)}) if lines else None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    if frame is None or frame.height != lines - skip or not (frame[last] != "").fill_null(False).all():
        return None
    if last in names:
        frame = frame.with_columns(pl.when(pl.col(last) != ABSENT).then(last))
    return frame.select(pl.int_range(skip + 1, skip + 1 + pl.len()).alias("line"), *names).rename(names)


def read_lines(lines: Lines, layout: Layout) -> pl.DataFrame:
    """The columns we read of the lines that can be parsed."""
    names = _names(layout)
    if not len(lines.numbers):
        return pl.DataFrame(schema={"line": pl.Int64(), **dict.fromkeys(names.values(), pl.String())})
    read = partial(
        pl.read_csv,
        lines.data,
        has_header=False,
        skip_lines=lines.skip,
        columns=list(names),
        null_values=ABSENT,
        empty_string_is_null=False,
    )
    try:
        frame = read(schema={**_text(layout), **_numbers(names)})
    except pl.exceptions.ComputeError:  # some cell is not a number: which one is found from the text
        frame = read(schema=_text(layout))
    return frame.rename(names).insert_column(0, pl.Series("line", lines.numbers))


def _names(layout: Layout) -> dict[str, str]:
    """Polars' name of a column -> ours."""
    return {f"column_{at + 1}": ours for ours, at in layout.index.items()}


def _text(layout: Layout) -> dict[str, pl.DataType]:
    return {f"column_{at + 1}": pl.String() for at in range(layout.fields)}


def _numbers(names: dict[str, str], but: str = "") -> dict[str, pl.DataType]:
    """Types of the columns that hold numbers; a start is more than a float64 holds and stays text."""
    return {name: SCHEMA[ours] for name, ours in names.items() if ours != "start_us" and name != but}


def _count_lines(file: Path) -> int:
    """Number of lines, a last one without a newline included; 0 if a line ends in a field that is one quote only.

    At such a field polars does not raise, it panics.
    """
    size = file.stat().st_size
    blocks = range(0, size, BLOCK)
    with ThreadPoolExecutor(2) as pool:
        by = pool.map if len(blocks) > 1 else map
        counts = list(by(lambda at: _count_block(file, at, size), blocks))
    return 0 if min(counts, default=0) < 0 else sum(counts)


def _count_block(file: Path, at: int, size: int) -> int:
    """Number of lines that end in a block, -1 if one of them ends in a lone quote (and perhaps a carriage return)."""
    before = min(at, 3)  # bytes that belong to the block before
    with file.open("rb", buffering=0) as data:
        data.seek(at - before)
        block = bytes(3 - before) + (data.read(before + BLOCK) or b"")
    if at + BLOCK >= size and not block.endswith(b"\n"):
        block += b"\n"
    text = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(text[3:] == NEWLINE) + 3
    last, one_before, two_before = text[ends - 1], text[ends - 2], text[ends - 3]
    bare = (last == QUOTE) & ((one_before == COMMA) | (one_before == NEWLINE))
    returned = (last == RETURN) & (one_before == QUOTE) & ((two_before == COMMA) | (two_before == NEWLINE))
    return -1 if (bare | returned).any() else len(ends)
