"""Streams and steps from `trace_view.json`, for tables that lack them.

The trace is a Chrome trace of gigabytes whose times are often strings, and it may end in the middle of an event. It is
read event by event, as far as it goes, and only what is needed is kept.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from models.problems import Problem

CHUNK = 1 << 20
LONGEST = 16 << 20  # bytes of one event
STREAM = re.compile(r"stream\s*(\d+)", re.IGNORECASE)
STEP = re.compile(r"ProfilerStep#(\d+)")
DEVICE = "Ascend Hardware"  # the process whose threads are streams
LATEST_NS = 1 << 62  # in 2116
NEAR_NS = 2  # the table's last digit is rounded, the trace's cut off


@dataclass
class Trace:
    """What a trace says about kernels. All times in integer nanoseconds since the epoch.

    Attributes:
        kernels: (start, name, stream) of everything that ran on a stream.
        steps: (step, begin, end) on the host.
        launches: device start -> host time of its launch.
        problems: what could not be read.
    """

    kernels: list[tuple[int, str, str]] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    launches: dict[int, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_trace(path: Path) -> Trace:
    """Everything about kernels in a trace; of a truncated or broken one what comes before the damage."""
    trace = Trace()
    processes: dict[Any, str] = {}
    threads: dict[tuple[Any, Any], str] = {}
    ran: list[tuple[int, str, Any, Any, str]] = []
    sent: dict[str, int] = {}
    arrived: dict[str, int] = {}
    for event in _events(path, trace):
        kind, name = event.get("ph"), event.get("name")
        pid, tid = str(event.get("pid")), str(event.get("tid"))
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        if kind == "M" and name == "process_name":
            processes[pid] = str(args.get("name"))
        elif kind == "M" and name == "thread_name":
            threads[pid, tid] = str(args.get("name"))
        elif kind == "X" and isinstance(name, str) and (at := _nanoseconds(event.get("ts"))) is not None:
            step = STEP.match(name)
            if step:
                length = _nanoseconds(event.get("dur")) or 0
                trace.steps.append((int(step.group(1)[:18]), at, at + length))
            else:
                stream = args.get("Stream Id", args.get("Physic Stream Id"))
                ran.append((at, name, pid, tid, "" if stream is None else str(stream)))
        elif event.get("cat") == "async_npu" and (at := _nanoseconds(event.get("ts"))) is not None:
            (sent if kind == "s" else arrived)[str(event.get("id"))] = at
    # Names of processes may come after their events.
    for at, name, pid, tid, stream in ran:
        if processes.get(pid) == DEVICE:
            named = STREAM.search(threads.get((pid, tid), ""))
            trace.kernels.append((at, name, named.group(1) if named else stream or tid))
    trace.launches = {at: sent[key] for key, at in arrived.items() if key in sent}
    return trace


def fill(kernels: pl.DataFrame, base_us: int, trace: Trace) -> pl.DataFrame:
    """Kernels with null streams and steps filled from the trace.

    A kernel is found by its name and its start (to 2 ns). Its step is the one in which the host launched it; a kernel
    without a known launch belongs to the step of the kernel that started before it.

    Args:
        kernels: columns as `rows.SCHEMA`.
        base_us: what was subtracted from `start_us`.
        trace: from the same run.
    """
    at = (pl.col("start_us") * 1000).round().cast(pl.Int64).alias("at")
    frame = kernels.with_columns(at, pl.int_range(pl.len()).alias("row")).sort("at")
    if trace.kernels and kernels["stream"].null_count():
        rows = [(ns - base_us * 1000, name, stream) for ns, name, stream in trace.kernels]
        seen = _frame(rows, {"at": pl.Int64(), "name": pl.String(), "seen": pl.String()})
        frame = frame.join_asof(seen, on="at", by="name", strategy="nearest", tolerance=NEAR_NS, check_sortedness=False)
        frame = frame.with_columns(pl.coalesce("stream", "seen").alias("stream")).drop("seen")
    if trace.steps and kernels["step"].null_count():
        steps = _frame([(begin, step) for step, begin, _ in trace.steps], {"host": pl.Int64(), "found": pl.Int64()})
        launches = _frame(
            [(ns - base_us * 1000, host) for ns, host in trace.launches.items()], {"at": pl.Int64(), "host": pl.Int64()}
        )
        launches = launches.sort("host").join_asof(steps.sort("host"), on="host").sort("at").drop("host")
        frame = frame.join_asof(launches, on="at", strategy="nearest", tolerance=NEAR_NS)
        frame = frame.with_columns(pl.coalesce("step", pl.col("found").forward_fill().backward_fill()).alias("step"))
    return frame.sort("row").select(kernels.columns)


def _frame(rows: list[tuple[Any, ...]], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row").sort(next(iter(schema)))


def _events(path: Path, trace: Trace) -> Iterator[dict[str, Any]]:
    """Events of the file until its end, or until it can't be read any further."""
    # Times without quotes lose their nanoseconds as floats: keep the text.
    decoder = json.JSONDecoder(parse_float=str)
    text, at, count = "", 0, 0
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        text = file.read(CHUNK)
        named = text.find('"traceEvents"') if text.lstrip().startswith("{") else 0
        at = text.find("[", named) + 1 if named >= 0 else 0
        if not at:
            trace.problems.append(_broken(path, "holds no list of events"))
            return
        while True:
            while at < len(text) and text[at] in " \t\r\n,":
                at += 1
            if at < len(text) and text[at] == "]":
                return
            try:
                event, end = decoder.raw_decode(text, at)
                at = end
                count += 1
                if isinstance(event, dict):
                    yield event
                continue
            except RecursionError:
                trace.problems.append(
                    _broken(path, f"event {count + 1} is nested too deeply; the {count} before it are used")
                )
                return
            except ValueError:
                more = file.read(CHUNK) if len(text) - at < LONGEST else ""
            if not more:
                trace.problems.append(_broken(path, f"cut off or damaged after {count} events, which are used"))
                return
            text, at = text[at:] + more, 0


def _broken(path: Path, what: str) -> Problem:
    return Problem("warning", "trace-damaged", what, file=str(path))


def _nanoseconds(value: object) -> int | None:
    """Microseconds, as a number or text, to integer nanoseconds."""
    try:
        number = Decimal(str(value).strip()[:40]) * 1000
        fits = number.is_finite() and abs(number) < LATEST_NS
    except ArithmeticError:  # no number, or one out of all bounds
        return None
    return int(number) if fits else None
