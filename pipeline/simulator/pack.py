"""Workloads, copies and parameters as the flat arrays that the event loop runs on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from models.workload import Kernel, WeightRead, Workload
from pipeline.simulator import engine
from pipeline.simulator.copies import Copy
from pipeline.simulator.parameters import Parameters


@dataclass(frozen=True)
class PackedWorkload:
    """A workload as arrays.

    Attributes:
        arrays: what the event loop reads.
        weights: FQN -> weight number.
        ops: the distinct (operator, engine) pairs; `arrays.op` indexes them.
        streams: labels by stream number, in the order of their first kernel.
    """

    arrays: engine.Packed
    weights: dict[str, int]
    ops: tuple[tuple[str, str], ...]
    streams: tuple[str, ...]


def pack(workload: Workload) -> PackedWorkload:
    """Flatten a workload. The order of `workload.kernels` is the program order of every stream."""
    kernels = workload.kernels
    n = len(kernels)
    weights: dict[str, int] = {}
    ops: dict[tuple[str, str], int] = {}
    streams: dict[str, int] = {}
    for position, kernel in enumerate(kernels):
        if kernel.index != position:
            raise ValueError(f"kernel {kernel.index} ({kernel.module}) stands at position {position} of the workload")
        streams.setdefault(kernel.stream, len(streams))
        ops.setdefault((kernel.op, kernel.engine), len(ops))
        for read in kernel.weights:
            weights.setdefault(read.weight, len(weights))

    following = np.full(n, -1, np.int64)
    first = np.full(len(streams), -1, np.int64)
    previous: dict[str, int] = {}
    for kernel in kernels:
        if kernel.stream in previous:
            following[previous[kernel.stream]] = kernel.index
        else:
            first[streams[kernel.stream]] = kernel.index
        previous[kernel.stream] = kernel.index

    reads = [(kernel.index, read) for kernel in kernels for read in kernel.weights]
    waits = [
        sorted(d for d in set(kernel.inputs) if d >= kernel.index or kernels[d].stream != kernel.stream)
        for kernel in kernels
    ]
    stored = np.zeros(len(weights))
    for _, read in reads:
        stored[weights[read.weight]] = max(stored[weights[read.weight]], read.stored_bytes)
    arrays = engine.Packed(
        stream=_ints(streams[k.stream] for k in kernels),
        following=following,
        first=first,
        op=_ints(ops[k.op, k.engine] for k in kernels),
        peak=_ints(_peak(k) for k in kernels),
        flops=_floats(k.comm_bytes if k.engine == "communication" else k.flops for k in kernels),
        cores=_floats(k.cores for k in kernels),
        units=_ints(_units(k) for k in kernels),
        ranks=_floats(max(1, k.comm_ranks) for k in kernels),
        exact=_floats(-1.0 if k.fixed_us is None else k.fixed_us for k in kernels),
        measured=_floats(-1.0 if k.measured_us is None else k.measured_us for k in kernels),
        other=_floats(0.0 if k.fixed_us is not None else k.other_bytes for k in kernels),
        grouped=_ints(k.op.startswith("GroupedMatmul") for k in kernels),
        read_from=_offsets([len(k.weights) for k in kernels]),
        read_weight=_ints(weights[read.weight] for _, read in reads),
        read_stored=_floats(read.stored_bytes for _, read in reads),
        read_share=np.array([_shares(r) for _, r in reads], np.float64).reshape(-1, 3),
        wait_from=_offsets([len(w) for w in waits]),
        waits=_ints(d for w in waits for d in w),
        stored=stored,
        part=np.full((n, 2), -1, np.int64),
        joined=np.zeros((n, 2), np.int64),
        overlap=np.zeros(n, np.int64),
    )
    return PackedWorkload(arrays, weights, tuple(ops), tuple(streams))


def pack_copies(packed: PackedWorkload, copies: Sequence[Copy]) -> engine.Copies:
    """Flatten the copies of one plan, or of several plans one behind the other.

    Copies are cut at the end of their weight, as the operator does.

    Raises:
        ValueError: a copy waits for a kernel that does not exist.
    """
    kernels = len(packed.arrays.op)
    count = len(copies)
    number = packed.weights.get
    weight = np.fromiter((number(c.weight, -1) for c in copies), np.int64, count)
    after = np.fromiter((c.after for c in copies), np.int64, count)
    size = np.fromiter((c.size for c in copies), np.float64, count)
    offset = np.fromiter((c.offset for c in copies), np.float64, count)
    if count and (after.min() < -1 or after.max() >= kernels):
        bad = copies[int(np.argmax((after < -1) | (after >= kernels)))]
        raise ValueError(f"the copy of {bad.weight} waits for kernel {bad.after}; the workload has 0 to {kernels - 1}")
    known = weight >= 0
    room = np.where(known, packed.arrays.stored[weight] if len(packed.arrays.stored) else 0.0, np.inf) - offset
    return engine.Copies(weight, after, np.clip(size, 0.0, np.maximum(room, 0.0)), offset)


def pack_parameters(packed: PackedWorkload, parameters: Sequence[Parameters]) -> tuple[np.ndarray, np.ndarray]:
    """Rows [draws, columns] and fixed times [draws, operators] of the event loop."""
    rows = np.zeros((len(parameters), engine.COLUMNS))
    fixed = np.zeros((len(parameters), len(packed.ops)))
    for d, p in enumerate(parameters):
        v = p.values
        rows[d, engine.HBM] = p.hbm_peak * v["hbm_share"]
        rows[d, engine.CORES] = p.cores
        rows[d, engine.L2] = p.l2_bytes * v["l2_share"]
        for column, name in _COLUMNS:
            rows[d, column] = v[name]
        fixed[d] = [p.fixed_us(op, kind) for op, kind in packed.ops]
    return rows, fixed


# Cores that a kernel occupies: AIC 1, AIV 2. Collectives run on the link (a few AIV cores of theirs are not counted).
_UNITS = {"cube": 1, "vector": 2, "mix": 3}

_COLUMNS = (
    (engine.CORE_BW, "core_bandwidth"),
    (engine.L2_BW, "l2_bandwidth"),
    (engine.CMO_BW, "cmo_bandwidth"),
    (engine.TASK, "cmo_task"),
    (engine.ISSUE, "issue"),
    (engine.GAP, "gap"),
    (engine.LAUNCH, "launch"),
    (engine.FUSED_GAP, "fused_gap"),
    (engine.FUSION, "fusion"),
    (engine.LINK_BW, "link_bandwidth"),
    (engine.RANK_LATENCY, "rank_latency"),
    (engine.LATE, "late_bytes"),
    (engine.PREFIX, "cold_slices"),
    (engine.SELF_EVICTION, "self_eviction"),
    (engine.SERIAL, "serial_hits"),
    (engine.SHARING, "hbm_sharing"),
    (engine.SHARE, "routing"),
    (engine.FIRST_SHARE, "first_experts"),
    *((engine.PEAK + k, f"peak_{name}") for k, name in enumerate(engine.PEAKS[:4])),
)


def _units(kernel: Kernel) -> int:
    """A measured time holds its wait for cores already."""
    timed = kernel.fixed_us is not None or kernel.measured_us is not None
    return 0 if timed else _UNITS.get(kernel.engine, 0)


def _peak(kernel: Kernel) -> int:
    if kernel.engine == "communication":
        return engine.PEAKS.index("link")
    if kernel.engine == "vector":
        return engine.PEAKS.index("vector")
    if kernel.flops_dtype not in engine.PEAKS[:3]:
        known = ", ".join(engine.PEAKS[:3])
        raise ValueError(f"kernel {kernel.index} ({kernel.op}): no peak for {kernel.flops_dtype!r}, only for {known}")
    return engine.PEAKS.index(kernel.flops_dtype)


def _shares(read: WeightRead) -> tuple[float, float, float]:
    if read.share_low <= read.share <= read.share_high:
        return read.share_low, read.share, read.share_high
    return read.share, read.share, read.share  # no band was given


def _ints(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), np.int64)


def _floats(values: Iterable[float]) -> np.ndarray:
    return np.array(list(values), np.float64)


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
