"""Streams and steps that only the trace has."""

import json
from pathlib import Path

import polars as pl
import pytest

from pipeline.profile.rows import SCHEMA
from pipeline.profile.trace_view import fill, read_trace

BASE = 1736413971558000
META = [
    {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "Ascend Hardware"}},
    {"ph": "M", "name": "thread_name", "pid": 7, "tid": 40, "args": {"name": "Stream 4"}},
    {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "args": {"name": "HCCL"}},
]


def kernel(at: str, name: str = "k", tid: int = 40, pid: int = 7, **args: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": at, "dur": 1.0, "args": args}


def launch(number: int, host: str, device: str) -> list[dict[str, object]]:
    return [
        {"ph": "s", "cat": "async_npu", "name": "torch_to_npu", "id": number, "pid": 1, "tid": 1, "ts": host},
        {"ph": "f", "cat": "async_npu", "name": "torch_to_npu", "id": number, "pid": 7, "tid": 40, "ts": device},
    ]


def step(number: int, at: str, length: float) -> dict[str, object]:
    return {"ph": "X", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1, "ts": at, "dur": length}


def table(*starts: float, names: str = "") -> pl.DataFrame:
    rows = {name: [None] * len(starts) for name in SCHEMA}
    rows |= {
        "start_us": list(starts),
        "name": list(names or "k" * len(starts)),
        "line": list(range(2, len(starts) + 2)),
    }
    return pl.DataFrame(rows, schema=dict(SCHEMA))


def write(path: Path, events: object) -> Path:
    path.write_text(events if isinstance(events, str) else json.dumps(events))
    return path


def test_a_kernel_is_found_by_name_and_start(tmp_path: Path):
    events = [kernel(f"{BASE}.912"), kernel(f"{BASE + 2}.100", tid=5), kernel(f"{BASE}.912", "other", tid=6), *META]
    trace = read_trace(write(tmp_path / "t.json", events))
    filled = fill(table(2.1, 0.912, 77.0), BASE, trace)
    assert filled["stream"].to_list() == ["5", "4", None]
    assert filled["line"].to_list() == [2, 3, 4]
    assert filled.schema == dict(SCHEMA)


def test_the_last_digit_may_differ(tmp_path: Path):
    trace = read_trace(write(tmp_path / "t.json", [*META, kernel(f"{BASE}.913")]))
    assert fill(table(0.912), BASE, trace)["stream"].to_list() == ["4"]
    assert fill(table(0.909), BASE, trace)["stream"].to_list() == [None]


def test_communication_has_no_stream(tmp_path: Path):
    trace = read_trace(write(tmp_path / "t.json", [*META, kernel(f"{BASE}.5", pid=9)]))
    assert fill(table(0.5), BASE, trace)["stream"].to_list() == [None]


def test_a_step_is_the_one_in_which_the_host_launched(tmp_path: Path):
    """Kernels run after the host's step has ended; the one without a launch of its own goes with the one before."""
    events = [
        *(step(3, f"{BASE}.0", 10.0), step(4, f"{BASE + 10}.0", 10.0)),
        *launch(1, f"{BASE + 1}.0", f"{BASE + 11}.0"),
        *launch(2, f"{BASE + 12}.0", f"{BASE + 15}.0"),
    ]
    trace = read_trace(write(tmp_path / "t.json", [*META, *events]))
    assert fill(table(11.0, 12.0, 15.0, 16.0), BASE, trace)["step"].to_list() == [3, 3, 4, 4]


def test_what_the_table_says_stays(tmp_path: Path):
    trace = read_trace(write(tmp_path / "t.json", [*META, kernel(f"{BASE}.5"), kernel(f"{BASE}.7")]))
    known = table(0.5, 0.7).with_columns(stream=pl.Series(["9", None], dtype=pl.String))
    assert fill(known, BASE, trace)["stream"].to_list() == ["9", "4"]


@pytest.mark.parametrize("time", [f"{BASE}.912", f'"{BASE}.912"', f'" {BASE}.912 "'])
def test_times_are_text_or_numbers_and_exact(tmp_path: Path, time: str):
    event = f'{{"ph": "X", "name": "k", "pid": 7, "tid": 40, "ts": {time}}}'
    trace = read_trace(write(tmp_path / "t.json", f"[{json.dumps(META[0])}, {event}]"))
    assert trace.kernels == [(BASE * 1000 + 912, "k", "40")]


def test_a_trace_inside_an_object(tmp_path: Path):
    events = {"displayTimeUnit": "ns", "schema": ["x"], "traceEvents": [*META, kernel(f"{BASE}.5")]}
    assert len(read_trace(write(tmp_path / "t.json", events)).kernels) == 1


def test_a_truncated_trace_is_read_to_its_end(tmp_path: Path):
    text = json.dumps([*META, *(kernel(f"{BASE + at}.5") for at in range(100))])
    trace = read_trace(write(tmp_path / "t.json", text[: len(text) // 2]))
    assert 40 < len(trace.kernels) < 60
    assert [problem.code for problem in trace.problems] == ["trace-damaged"]
    assert f"after {len(trace.kernels) + len(META)} events" in trace.problems[0].message


def test_events_longer_than_a_block_and_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.profile.trace_view.CHUNK", 50)
    trace = read_trace(write(tmp_path / "t.json", [*META, kernel(f"{BASE}.5", note="x" * 500), kernel(f"{BASE}.6")]))
    assert len(trace.kernels) == 2 and not trace.problems


@pytest.mark.parametrize(
    "text", ["", "{}", "nonsense", "[", '{"traceEvents": 3}', "[" * 100_000, '[1, "x", null, {"ph": "X"']
)
def test_rubbish_is_told(tmp_path: Path, text: str):
    trace = read_trace(write(tmp_path / "t.json", text))
    assert trace.kernels == [] and [problem.code for problem in trace.problems] == ["trace-damaged"]


@pytest.mark.parametrize("time", ["null", '"soon"', '"1e999999999"', "1e300", "{}", "-1e30"])
def test_events_with_impossible_times_are_left_out(tmp_path: Path, time: str):
    event = f'{{"ph": "X", "name": "k", "pid": 7, "tid": 40, "ts": {time}}}'
    assert read_trace(write(tmp_path / "t.json", f"[{json.dumps(META[0])}, {event}]")).kernels == []
