"""Lines of a CSV file that can be parsed, and the ones that can't.

A kernel table has one kernel per line: no field spans lines. So every line is judged on its own (number of
fields, quotes that match), a broken one cannot swallow those after it, and line numbers are exact. One compiled
pass over the bytes judges; only a line that looks wrong is read by Python.
"""

import csv
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

WORTH_THREADS = 1 << 22  # bytes
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
    wrong, ends = _judged(text, data, start, fields)
    whole = memoryview(data)
    pieces: list[bytes | memoryview] = []
    keep = np.ones(len(ends), bool)
    ragged: list[tuple[int, int]] = []
    taken = 0
    for index in np.flatnonzero(wrong).tolist():
        left, right = int(ends[index - 1]) if index else start, int(ends[index])
        pieces.append(whole[taken:left])
        taken = right
        row = _fields(data[left:right])
        if row is not None and len(row) == fields + 1 and not row[-1].strip():
            row.pop()
        if row is not None and len(row) == fields:
            pieces.append(_written(row))
            continue
        keep[index] = False
        if row is None or any(field.strip() for field in row):
            ragged.append((skip + 1 + index, -1 if row is None else len(row)))
    if pieces:
        data = b"".join([*pieces, whole[taken:]])
    return Lines(data, skip, np.flatnonzero(keep) + skip + 1, ragged)


def _judged(text: Bytes, data: bytes, start: int, fields: int) -> tuple[Flags, Integers]:
    """`judge.judge`, by two threads where that is worth starting them."""
    from pipeline.profile.judge import judge  # loads numba, which a clean file does without

    middle = data.find(b"\n", (start + len(data)) // 2) + 1
    if len(data) < WORTH_THREADS or not start < middle < len(data):
        return judge(text, start, len(data), fields, LONGEST)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(judge, text, middle, len(data), fields, LONGEST)
        wrong, ends = judge(text, start, middle, fields, LONGEST)
        return np.concatenate([wrong, second.result()[0]]), np.concatenate([ends, second.result()[1]])


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
