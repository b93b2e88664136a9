"""Profiles in the real format, written from our own simulator: what the readers of a profile are tested on.

They prove that the plumbing works: what the simulator put in comes out again. They prove nothing about an NPU.
"""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from models.workload import Kernel, Workload
from pipeline.simulator.machine import Machine
from pipeline.simulator.simulate import StepResult, simulate

if TYPE_CHECKING:
    from models.loading import LoadedModel

EPOCH_US = 1_736_413_971_558_000
_AIC = ("mac", "scalar", "mte1", "mte2", "fixpipe")
_AIV = ("vec", "scalar", "mte2", "mte3")
_METRICS = [
    *("aicore_time(us)", "aic_total_cycles"),
    *(f"aic_{pipe}_{what}" for pipe in _AIC for what in ("time(us)", "ratio")),
    *("aic_icache_miss_rate", "aiv_time(us)", "aiv_total_cycles"),
    *(f"aiv_{pipe}_{what}" for pipe in _AIV for what in ("time(us)", "ratio")),
    *("aiv_icache_miss_rate", "cube_utilization(%)"),
]
COLUMNS = [
    *("Step Id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core"),
    *("Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible"),
    *("Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats"),
    *("Context ID", *_METRICS),
]
# The names that kernels have in a profile, where they differ from the operator's.
_TYPES = {
    "MatMul": "MatMulV3",
    "QuantBatchMatmul": "QuantBatchMatmulV3",
    "MLAProlog": "MlaPrologV2",
    "SwiGLU": "SwiGlu",
    "MoeDistributeDispatch": "MoeDistributeDispatchV2",
    "MoeDistributeCombine": "MoeDistributeCombineV2",
    "AllGather": "hcom_allGather_",
    "AllReduce": "hcom_allReduce_",
    "AllToAll": "hcom_alltoall_",
    "ReduceScatter": "hcom_reduceScatter_",
}
_CORES = {"cube": "AI_CORE", "vector": "AI_VECTOR_CORE", "mix": "MIX_AIC", "communication": "HCCL"}
_DTYPES = {"torch.bfloat16": "DT_BF16", "torch.float32": "FLOAT", "torch.int8": "INT8"}


@dataclass(frozen=True)
class _Tensors:
    """Slots of one side of a kernel; None is an absent optional input."""

    shapes: tuple[tuple[int, ...] | None, ...]
    dtypes: tuple[str, ...]

    def text(self) -> tuple[str, str, str]:
        """Shapes (with the quotes that the real files keep), data types, formats."""
        shapes = ";".join("" if s is None else ",".join(map(str, s)) for s in self.shapes)
        dtypes = ";".join("DT_UNDEFINED" if s is None else d for s, d in zip(self.shapes, self.dtypes, strict=True))
        formats = ";".join("NULL" if s is None else "ND" for s in self.shapes)
        return f'"{shapes}"', dtypes, formats


def write_profile(
    directory: Path,
    loaded: "LoadedModel",
    workload: Workload,
    step: StepResult,
    machine: Machine,
    steps: int = 6,
    noise: float = 0.02,
    seed: int = 0,
    streams: Sequence[str] = ("main",),
) -> Path:
    """Write one rank's `*_ascend_pt` folder.

    Args:
        directory: where the folder goes.
        loaded: whose parameters give the shapes.
        workload, step: the kernels of one decode step, and when the simulator ran them (us).
        machine: for the busy shares of the pipes.
        steps: how many; the first one is slower, as in real files (instruction cache).
        noise: relative standard deviation of every kernel's time.
        seed: of the noise.
        streams: labels in the order of their Stream ID (2, 3, ...); others follow in order of appearance.

    Returns:
        The folder.
    """
    folder = directory / "worker_1234_20250109091931_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    (folder.parent / "profiler_info_0.json").write_text('{"rank_id": 0}')
    numbers = {label: 2 + k for k, label in enumerate(dict.fromkeys([*streams, *(k.stream for k in workload.kernels)]))}
    rng, rows, at = random.Random(seed), [], 0.0
    for number in range(steps):
        slower = 1.4 if number == 0 else 1.0
        times = [slower * us * max(0.5, rng.gauss(1.0, noise)) for us in step.durations()]
        run = _run(workload, times, machine)
        order = sorted(workload.kernels, key=lambda k: (run.starts[k.index], k.index))
        for task, kernel in enumerate(k for k in order if k.engine != "idle"):
            start, us = at + run.starts[kernel.index], times[kernel.index]
            rows.append(_row(number, task, numbers[kernel.stream], kernel, start, us, loaded, step, machine))
        at += run.time + 40.0
    with (folder / "kernel_details.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    return folder.parent


def _run(workload: Workload, times: Sequence[float], machine: Machine) -> StepResult:
    """The step with these times: streams and dependencies hold, and nothing competes for bandwidth once more."""
    kernels = tuple(replace(k, fixed_us=us) for k, us in zip(workload.kernels, times, strict=True))
    return simulate(replace(workload, kernels=kernels), [], machine.nominal())


def _row(
    number: int,
    task: int,
    stream: int,
    kernel: Kernel,
    start: float,
    us: float,
    loaded: "LoadedModel",
    step: StepResult,
    machine: Machine,
) -> list[object]:
    inputs, outputs = _slots(kernel, loaded)
    name = (
        f"{kernel.op}_{task}"
        if kernel.engine != "communication"
        else f"{_TYPES.get(kernel.op, kernel.op)}_951_{task}_1"
    )
    return [
        *(number, 4294967295, 50_000 + task, stream, name, _TYPES.get(kernel.op, kernel.op), "dynamic"),
        *(_CORES[kernel.engine], _time(start), round(us, 3), 0),
        *(kernel.cores or machine.cores, 0, "NO", *inputs.text(), *outputs.text(), "N/A"),
        *_metrics(kernel, us, step.kernel_hbm_bytes[kernel.index], machine),
    ]


def _time(us: float) -> str:
    """Microseconds since the epoch with three decimals, ended by the tab that the real files have."""
    whole, thousandths = divmod(round(us * 1000), 1000)
    return f"{EPOCH_US + whole}.{thousandths:03d}\t"


def _metrics(kernel: Kernel, us: float, hbm_bytes: float, machine: Machine) -> list[object]:
    if kernel.engine == "communication":
        return ["N/A"] * len(_METRICS)
    p = machine.nominal()
    busy = max(0.1, us - 1.0)
    load = min(0.97, hbm_bytes / (p.hbm_peak * p["hbm_share"]) / busy + 0.02)
    if kernel.engine == "vector":
        aiv = [round(busy, 3), 0, 0.0, 0.35, 0.0, 0.2, 0.0, round(load, 3), 0.0, 0.1, 0.01]
        return [*([0] * 13), *aiv, 0]
    mac = min(0.95, kernel.flops / p[f"peak_{kernel.flops_dtype}"] / busy)
    aic = [round(busy, 3), 0, 0.0, round(mac, 3), 0.0, 0.1, 0.0, 0.2, 0.0, round(max(load, 0.05), 3), 0.0, 0.05, 0.001]
    return [*aic, *([0] * 11), 80.0]


def _slots(kernel: Kernel, loaded: "LoadedModel") -> tuple[_Tensors, _Tensors]:
    """Inputs and outputs as the operators list them."""
    weights = [loaded.module.get_parameter(read.weight) for read in kernel.weights]
    shapes = [tuple(w.shape) for w in weights]
    dtypes = [_DTYPES[str(w.dtype)] for w in weights]
    out = "DT_BF16"
    if kernel.op in ("MatMul", "QuantBatchMatmul") and shapes:
        columns, common = shapes[0]
        rows = round(kernel.flops / (2 * columns * common))
        first = dtypes[0]
        extra = [(columns,), None, None, (rows,)] if kernel.op == "QuantBatchMatmul" else []
        kinds = [first, first, *(["FLOAT"] * len(extra))]
        inputs = _Tensors(((rows, common), (columns, common), *extra), tuple(kinds))
        return inputs, _Tensors(((rows, columns),), (out,))
    if kernel.op == "TransposeBatchMatMul" and shapes:
        batch, common, columns = shapes[0]
        rows = round(kernel.flops / (2 * batch * columns * common))
        inputs = _Tensors(((rows, batch, common), shapes[0]), (out, dtypes[0]))
        return inputs, _Tensors(((rows, batch, columns),), (out,))
    if kernel.op == "GroupedMatmul" and shapes:
        experts, common, columns = shapes[0]
        rows = round(kernel.flops / (2 * columns * common))
        slots = ((rows, common), shapes[0], None, (experts, columns), None, None, None, (experts,), (rows,))
        kinds = (dtypes[0], dtypes[0], "", "FLOAT", "", "", "", "INT64", "FLOAT")
        return _Tensors(slots, kinds), _Tensors(((rows, columns),), (out,))
    if kernel.op == "MLAProlog":
        tokens = loaded.deployment.batch_size * loaded.deployment.query_length
        matrices = [(s, d) for s, d in zip(shapes, dtypes, strict=True) if len(s) > 1]
        hidden = matrices[0][0][0]
        inputs = _Tensors(((tokens, hidden), *(s for s, _ in matrices)), (out, *(d for _, d in matrices)))
        return inputs, _Tensors(((tokens, 64, 512),), (out,))
    elements = max(1, int(kernel.other_bytes) // 4)
    inputs = _Tensors(((elements,), *shapes), (out, *dtypes))
    return inputs, _Tensors(((elements,),), (out,))
