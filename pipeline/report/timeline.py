"""Baseline and optimised step as a Chrome trace (timeline.json): opens in Perfetto and MindStudio Insight.

Two processes; each stream is a thread, the copy chain is one more. An arrow leads from each copy to the kernel that
reads its weight. Times are in us from the start of the step; everything in it is modelled.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from models.workload import Workload
from pipeline.legality import Placement
from pipeline.scope_spans import Calls
from transforms.plan import Plan

if TYPE_CHECKING:
    from pipeline.simulator.forecast import Forecast
    from pipeline.simulator.simulate import StepResult

BASELINE, OPTIMIZED = 1, 2
Event = dict[str, Any]


def timeline(workload: Workload, plan: Plan, placements: Sequence[Placement], forecast: "Forecast") -> str:
    """The trace as JSON text, one event a line.

    Args:
        workload: the step's kernels.
        plan: the plan.
        placements: which kernel reads each entry of the plan first.
        forecast: of the plan's copies, in plan order.
    """
    scopes = _scope_of(workload, plan)
    streams = {name: k for k, name in enumerate(dict.fromkeys(k.stream for k in workload.kernels), 1)}
    events = [
        *_names(BASELINE, "baseline (modelled)", streams, False),
        *_names(OPTIMIZED, "optimised (modelled)", streams, True),
        *_kernels(workload, forecast.baseline_step, BASELINE, streams, {}),
        *_kernels(workload, forecast.optimised_step, OPTIMIZED, streams, scopes),
        *_copies(workload, plan, placements, forecast.optimised_step, streams),
    ]
    about = {"provenance": "modelled", "plan_hash": plan.hash, "model": plan.model, "recipe": plan.recipe}
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in events)
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},"traceEvents":[\n{lines}\n]}}\n'


def _names(process: int, name: str, streams: dict[str, int], chain: bool) -> Iterator[Event]:
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    threads = {**{f"stream {stream}": tid for stream, tid in streams.items()}}
    if chain:
        threads["CMO (prefetch copies)"] = len(streams) + 1
    for label, tid in threads.items():
        yield {"ph": "M", "pid": process, "tid": tid, "name": "thread_name", "args": {"name": label}}
        yield {"ph": "M", "pid": process, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _scope_of(workload: Workload, plan: Plan) -> dict[int, str]:
    """Kernel -> label of the SuperKernel scope that holds it."""
    calls = Calls(workload)
    found: dict[int, str] = {}
    for scope in plan.scopes:
        span = calls.span(scope.first, scope.last)
        found |= dict.fromkeys(span.kernels if span is not None else (), scope.label)
    return found


def _kernels(
    workload: Workload, step: "StepResult", process: int, streams: dict[str, int], scopes: Mapping[int, str]
) -> Iterator[Event]:
    for kernel in workload.kernels:
        k = kernel.index
        start, end = _us(step.starts[k]), _us(step.ends[k])
        args: dict[str, Any] = {"module": kernel.module}
        if kernel.layer is not None:
            args["layer"] = kernel.layer
        if k in scopes:
            args["scope"] = scopes[k]
        args["bytes"] = round(step.kernel_hbm_bytes[k])
        args["hits"] = round(step.hits[k])
        if kernel.weights:
            args["weights"] = [w.weight for w in kernel.weights]
        yield {
            "ph": "X",
            "pid": process,
            "tid": streams[kernel.stream],
            "ts": start,
            "dur": _us(end - start),
            "name": kernel.op,
            "cat": kernel.engine,
            "args": args,
        }


def _copies(
    workload: Workload,
    plan: Plan,
    placements: Sequence[Placement],
    step: "StepResult",
    streams: dict[str, int],
) -> Iterator[Event]:
    """Copies, and an arrow from each to its reader; a copy that starts after its reader helps nobody and has none."""
    chain = len(streams) + 1
    for number, (entry, place, copy) in enumerate(zip(plan.prefetch, placements, step.copies, strict=True), 1):
        start, end = _us(copy.start), _us(copy.end)
        reader = _us(step.starts[place.reader])
        args = {
            "module": entry.weight,
            "bytes": entry.max_size,
            "moved": round(copy.moved),
            "useful": round(copy.useful),
            "pushed_out": round(copy.pushed_out),
            "dependency": f"{entry.dependency}:{entry.port}",
            "released_at": _us(copy.release),
        }
        slice_ = {"pid": OPTIMIZED, "tid": chain, "ts": start}
        yield {
            "ph": "X",
            **slice_,
            "dur": _us(end - start),
            "name": f"prefetch {entry.target}",
            "cat": "cmo",
            "args": args,
        }
        if start <= reader:
            flow = {"cat": "prefetch", "name": "prefetch", "id": number}
            yield {"ph": "s", **slice_, **flow}
            tid = streams[workload.kernels[place.reader].stream]
            yield {"ph": "f", "bp": "e", "pid": OPTIMIZED, "tid": tid, "ts": reader, **flow}


def _us(value: float) -> float:
    return round(float(value), 4)
