"""Small valid profiler files, and what can happen to a file."""

import json
import random
from collections.abc import Callable

from tests.pipeline.profile.files import COLUMNS, LEVEL0, SUMMARY, row

Mutation = Callable[[bytes, random.Random], bytes]

# What a spreadsheet, an editor, a broken disk or a malicious hand may put into a field.
CELLS = [
    *(b"", b'"', b'""', b'"""', b'"a,b', b"a\nb", b"\x00", b"N/A", b"nan", b"inf", b"-inf", b"-1", b"1e400", b"1e-400"),
    *(b"1e999999999999", b"9" * 400, b"0x10", b"1_000", b"1,5", b"\xff\xfe", b"\xe4\xbd\xa0", b"\xc4\xe3", b"True"),
    *(b"18446744073709551616", b"-9223372036854775809", b"1736413971558972.9121234567", b"Start Time(us)", b"\t\t"),
    *(b"1,2;", b";;;;;;;;", b"-1,-1", b"99999999999999999999,2", b"0,0", b"(8,)", b"a" * 200_000, b"\r", b"=1+1", b" "),
]


def base_files() -> list[bytes]:
    """Valid tables of every kind that we know."""
    rows = [
        {"start": f"17364139715589{i:02d}.{i:03d}\t", "step": str(i // 4), "stream": str(2 + i % 2)} for i in range(8)
    ]
    quoted = [cells | {"start": f'"{cells["start"]}"'} for cells in rows]
    arithmetic = [name if "_ratio" not in name else name.replace("_ratio", "_fp16_ratio") for name in COLUMNS]
    plain = [name.replace("aic_", "").replace("aiv_", "v") for name in COLUMNS]
    several = [cells | {"device": str(i % 3)} for i, cells in enumerate(rows)]
    return [
        _table(COLUMNS, [row(**cells) for cells in rows]),
        _table(COLUMNS, [row(**cells) for cells in quoted], end="\r\n"),
        _table(LEVEL0, [row(LEVEL0, **cells) for cells in rows]),
        _table(SUMMARY, [row(**cells) for cells in several]),
        _table(arithmetic, [row(**cells) for cells in rows]),
        _table(plain, [row(**cells) for cells in rows]),
        _table(COLUMNS[4:], [row(COLUMNS[4:], **cells) for cells in rows]),
        b"\xef\xbb\xbf" + _table(COLUMNS, [row(**cells) for cells in rows]),
    ]


def base_trace() -> bytes:
    """A valid trace of the same kernels."""
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "Ascend Hardware"}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 2, "args": {"name": "Stream 2"}},
        {"ph": "X", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": "1736413971558000.000", "dur": 5000.0},
    ]
    for i in range(8):
        at = f"17364139715589{i:02d}.{i:03d}"
        kernel = {
            "ph": "X",
            "name": "aclnnMatmul_MatMulV2",
            "pid": 7,
            "tid": 2,
            "ts": at,
            "dur": 5.44,
            "args": {"Task Id": i},
        }
        events.append(kernel)
        events.append({"ph": "s", "cat": "async_npu", "id": i, "pid": 1, "tid": 1, "ts": "1736413971558100.000"})
        events.append({"ph": "f", "cat": "async_npu", "id": i, "pid": 7, "tid": 2, "ts": at})
    return json.dumps(events).encode()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The file after one to four accidents."""
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(MUTATIONS)(data, rng)
    return data


def _table(columns: list[str], rows: list[str], end: str = "\n") -> bytes:
    return end.join([",".join(columns), *rows, ""]).encode()


def _flip(data: bytes, rng: random.Random) -> bytes:
    copy = bytearray(data)
    for _ in range(rng.choice((1, 2, 8, 64))):
        if copy:
            copy[rng.randrange(len(copy))] ^= 1 << rng.randrange(8)
    return bytes(copy)


def _replace_bytes(data: bytes, rng: random.Random) -> bytes:
    copy = bytearray(data)
    for _ in range(rng.choice((1, 4, 16))):
        if copy:
            copy[rng.randrange(len(copy))] = rng.choice(b'\x00,"\n\r\t;N/\xff\x80{[]}\\')
    return bytes(copy)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _behead(data: bytes, rng: random.Random) -> bytes:
    return data[rng.randrange(min(len(data), 400) + 1) :]


def _swap_columns(data: bytes, rng: random.Random) -> bytes:
    lines = [line.split(b",") for line in data.split(b"\n")]
    width = len(lines[0])
    a, b = rng.randrange(width), rng.randrange(width)
    for fields in lines[: rng.choice((1, len(lines)))]:
        if len(fields) > max(a, b):
            fields[a], fields[b] = fields[b], fields[a]
    return b"\n".join(b",".join(fields) for fields in lines)


def _drop_column(data: bytes, rng: random.Random) -> bytes:
    lines = [line.split(b",") for line in data.split(b"\n")]
    at = rng.randrange(len(lines[0]))
    return b"\n".join(b",".join(fields[:at] + fields[at + 1 :]) for fields in lines)


def _cell(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    fields = lines[at].split(b",")
    fields[rng.randrange(len(fields))] = rng.choice(CELLS)
    lines[at] = b",".join(fields)
    return b"\n".join(lines)


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(CELLS) + data[at:]


def _lines(data: bytes, rng: random.Random) -> bytes:
    """The header again, a line twice, lines shuffled, blank lines."""
    lines = data.split(b"\n")
    kind = rng.randrange(4)
    if kind == 0:
        lines.insert(rng.randrange(len(lines) + 1), lines[0])
    elif kind == 1:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    elif kind == 2:
        rng.shuffle(lines)
    else:
        lines.insert(rng.randrange(len(lines) + 1), b"")
    return b"\n".join(lines)


def _encode(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "gb18030")), "replace")


def _endings(data: bytes, rng: random.Random) -> bytes:
    return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"", b"\n\r")))


def _rubbish(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 50, 3000))) + data[at:]


def _quotes(data: bytes, rng: random.Random) -> bytes:
    return rng.choice(
        (data.replace(b'"', b""), data.replace(b'"""', b'"'), data.replace(b",", b'","'), data.replace(b'"', b"'"))
    )


MUTATIONS: list[Mutation] = [
    *(_flip, _replace_bytes, _cut, _behead, _swap_columns, _drop_column, _cell, _cell),
    *(_insert, _lines, _encode, _endings, _rubbish, _quotes),
]
