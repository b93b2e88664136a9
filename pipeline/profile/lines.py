"""Lines of a CSV file that can be parsed, and the ones that can't.

A kernel table has one kernel per line: no field spans lines. So every line is judged on its own (number of
fields, quotes that match), a broken one cannot swallow those after it, and line numbers are exact. All of it
is done on blocks of bytes; only a line that looks wrong is read by Python.
"""

import csv
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

BLOCK = 4 << 20
COMMA, QUOTE, NEWLINE, RETURN = b',"\n\r'
LONGEST = 1 << 20  # bytes; a line beyond this is rubbish, whatever is in it


@dataclass(frozen=True)
class Lines:
    """The parseable lines of a table.

    Attributes:
        data: CSV bytes: the file's lines before its body as they are, then the body's parseable lines.
        skip: number of lines before the body.
        numbers: 1-based line numbers of the body's lines, shape [lines].
        ragged: number and field count of every line that was left out; -1 fields: quotes that don't match.
    """

    data: bytes
    skip: int
    numbers: Integers
    ragged: list[tuple[int, int]]


def parseable(data: bytes, start: int, skip: int, fields: int) -> Lines:
    """Check every line of `data` from byte `start`, which is where line `skip + 1` begins.

    A line with one field more that is empty (a comma at its end) is right. Blank lines are left out, not reported.
    """
    if not data.endswith(b"\n"):
        data += b"\n"
    text = np.frombuffer(data, np.uint8)
    blocks = list(_blocks(data, start))
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda block: _suspects(text[slice(*block)], fields), blocks))
    whole = memoryview(data)
    pieces: list[bytes | memoryview] = [whole[:start]]
    kept: list[Integers] = []
    ragged: list[tuple[int, int]] = []
    line = skip + 1
    for (begin, end), (count, suspects) in zip(blocks, found, strict=True):
        keep, at = np.ones(count, bool), begin
        for index, left, right in suspects:
            pieces.append(whole[at : begin + left])
            at = begin + right
            row = _fields(data[begin + left : at])
            if row is not None and len(row) == fields + 1 and not row[-1].strip():
                row.pop()
            if row is not None and len(row) == fields:
                pieces.append(_written(row))
                continue
            keep[index] = False
            if row is None or any(field.strip() for field in row):
                ragged.append((line + index, -1 if row is None else len(row)))
        pieces.append(whole[at:end])
        kept.append(np.flatnonzero(keep) + line)
        line += count
    numbers = np.concatenate(kept) if kept else np.zeros(0, np.int64)
    untouched = not any(suspects for _, suspects in found)
    return Lines(data if untouched else b"".join(pieces), skip, numbers, ragged)


def _blocks(data: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Begin and end of blocks of whole lines."""
    while start < len(data):
        end = data.find(b"\n", min(start + BLOCK, len(data) - 1)) + 1
        yield start, end
        start = end


def _suspects(text: Bytes, fields: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Number of lines in a block, and index, begin and end of those that need a closer look."""
    ends = np.flatnonzero(text == NEWLINE)
    begins = np.concatenate([[0], ends[:-1] + 1])
    is_quote, commas = text == QUOTE, text == COMMA
    quoted = np.add.reduceat(is_quote, begins, dtype=np.int32)
    odd = quoted % 2 == 1
    if odd.any():
        wrong = quoted > 0
    else:
        wrong = np.zeros(len(ends), bool)
        # Quotes pair up within each line; a pair hides the commas between its two.
        quotes = np.flatnonzero(is_quote)
        opening, closing = quotes[0::2], quotes[1::2]
        before, after = text[opening - 1], text[closing + 1]
        fine = (before == COMMA) | (before == NEWLINE) | (before == QUOTE) | (opening == 0)
        fine &= (after == COMMA) | (after == NEWLINE) | (after == QUOTE) | (after == RETURN)
        wrong[np.searchsorted(ends, opening[~fine])] = True
        inside = np.zeros(len(text), np.int8)
        inside[opening] = 1
        inside[closing] = -1
        commas &= np.cumsum(inside, dtype=np.int8) == 0
    wrong |= np.add.reduceat(commas, begins, dtype=np.int32) != fields - 1
    wrong |= ends - begins > LONGEST
    return len(ends), [(int(i), int(begins[i]), int(ends[i]) + 1) for i in np.flatnonzero(wrong)]


def _fields(raw: bytes) -> list[str] | None:
    """Fields of one line, read by Python's parser; None if its quotes don't match or it is absurdly long."""
    if len(raw) > LONGEST:
        return None
    try:
        rows = list(csv.reader([raw.decode("utf-8").rstrip("\r\n")], strict=True))
    except csv.Error:
        return None
    return rows[0] if rows else []


def _written(fields: list[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(fields)
    return text.getvalue().encode("utf-8")
