"""Small workloads and parameters for the simulator's tests; also the random ones that its laws are checked on."""

import random
from collections.abc import Sequence
from dataclasses import replace

from models.workload import Kernel, WeightRead, Workload
from pipeline.simulator.copies import Copy
from pipeline.simulator.fusion import FusedScope
from pipeline.simulator.parameters import Parameters

MIB = 1 << 20


def parameters(cores: int = 24, l2_mib: float = 192, fixed: float = 0.0, **values: float) -> Parameters:
    """A machine of round figures: HBM 1 MB/us, copies 0.5 MB/us, everything else out of the way unless asked for."""
    plain = {
        "hbm_share": 1.0,
        "core_bandwidth": 1e12,
        "l2_bandwidth": 1e18,
        "l2_share": 1.0,
        "cmo_bandwidth": 0.5e6,
        "cmo_task": 0.0,
        "issue": 0.0,
        "issue_eager": 50.0,
        "gap": 0.0,
        "launch": 0.0,
        "fused_gap": 0.0,
        "fusion": 1,
        "link_bandwidth": 1e5,
        "rank_latency": 0.0,
        "peak_bf16": 1e6,
        "peak_int8": 2e6,
        "peak_fp32": 1e5,
        "peak_vector": 1e4,
        "late_bytes": 1,
        "cold_slices": 1,
        "self_eviction": 1,
        "serial_hits": 1,
        "hbm_sharing": 0,
        "routing": 0.0,
        "first_experts": 0.0,
    }
    times = {"cube": fixed, "vector": fixed, "mix": fixed, "communication": fixed}
    return Parameters(cores, 1e6, l2_mib * MIB, plain, times).with_values(**values)


def workload(*kernels: Kernel) -> Workload:
    return Workload(kernels, layers=1)


def idle(index: int, us: float, stream: str = "main", inputs: Sequence[int] = ()) -> Kernel:
    return Kernel(index, "Idle", f"wait{index}", "idle", stream, fixed_us=us, inputs=tuple(inputs))


def matmul(
    index: int,
    weight: str,
    size: float,
    stream: str = "main",
    inputs: Sequence[int] = (),
    flops: float = 0.0,
    cores: int = 0,
    other: float = 0.0,
    share: float | tuple[float, float, float] = 1.0,
    op: str = "MatMul",
) -> Kernel:
    low, nominal, high = share if isinstance(share, tuple) else (share, share, share)
    read = WeightRead(weight, int(size), nominal, low, high)
    return Kernel(index, op, weight, "cube", stream, cores, flops, "bf16", (read,), other, inputs=tuple(inputs))


def random_case(rng: random.Random, streams: int = 1, level: bool = True) -> tuple[Workload, list[Copy], Parameters]:
    """A random step, a plan for it and parameters.

    Args:
        rng: the only source of randomness.
        streams: kernels are spread over so many streams.
        level: also draw how many experts are hot.
    """
    kernels: list[Kernel] = []
    weights: list[tuple[str, int, int]] = []
    for i in range(rng.randint(2, 14)):
        stream = str(rng.randrange(streams))
        inputs = (rng.randrange(i),) if i and rng.random() < 0.4 else ()
        kind = rng.random()
        if kind < 0.1:
            kernels.append(idle(i, rng.choice([0.0, 3.0, 40.0]), stream, inputs))
            continue
        reads: list[WeightRead] = []
        for part in range(rng.choice([0, 1, 1, 1, 2])):
            size = rng.choice([0, 1, 5, 20, 60, 120]) * MIB
            share = rng.choice([1.0, 1.0, 0.3, 0.0])
            reads.append(WeightRead(f"w{i}.{part}", size, share, share * 0.5, min(1.0, share * 1.5)))
            weights.append((f"w{i}.{part}", i, size))
        if weights and rng.random() < 0.15:  # a weight that another kernel reads too
            name, _, size = rng.choice(weights)
            if all(read.weight != name for read in reads):
                reads.append(WeightRead(name, size))
        kernels.append(
            Kernel(
                i,
                rng.choice(["MatMul", "GroupedMatmul"]),  # all of them fuse; `mixed_fusable` makes some that do not
                f"m{i}",
                rng.choice(["cube", "cube", "vector", "mix", "communication"]),
                stream,
                rng.choice([0, 0, 12, 8]),
                rng.choice([0.0, 0.0, 5e6, 3e7]),
                rng.choice(["bf16", "int8", "fp32"]),
                tuple(reads),
                rng.choice([0.0, 0.0, 3e6, 8e7]),
                rng.choice([0.0, 1e6]),
                rng.choice([1, 8]),
                inputs,
            )
        )
    copies: list[Copy] = []
    for name, reader, size in weights:
        while reader and rng.random() < 0.6:
            part = size * rng.choice([0.0, 0.3, 0.5, 1.0])
            copies.append(Copy(name, rng.randrange(-1, reader), part, rng.choice([0.0, 0.0, 0.5]) * size))
    copies.sort(key=lambda copy: copy.after)
    chosen = parameters(
        l2_mib=rng.choice([40, 100, 400]),
        fixed=rng.choice([0.0, 2.0]),
        core_bandwidth=rng.choice([4e4, 1e6]),
        l2_bandwidth=rng.choice([3e6, 1e9]),
        cmo_bandwidth=rng.choice([0.2e6, 0.9e6, 2e6]),
        cmo_task=rng.choice([0.0, 1.5]),
        issue=rng.choice([0.0, 2.0]),
        gap=rng.choice([0.0, 1.5]),
        rank_latency=rng.choice([0.0, 0.5]),
        late_bytes=rng.choice([0, 1, 1, 2]),
        cold_slices=rng.choice([0, 1]),
        self_eviction=rng.choice([0, 1, 2]),
        serial_hits=rng.choice([0, 1]),
        hbm_sharing=rng.choice([0, 1, 2]),
        routing=rng.choice([-1.0, 0.0, 0.5]) if level else 0.0,
        first_experts=rng.choice([-1.0, 0.0, 1.0]),
    )
    return Workload(tuple(kernels), layers=1), copies, chosen


def mixed_fusable(rng: random.Random, step: Workload) -> Workload:
    """The same step with some kernels that never fuse (Cast) or not always (Add)."""
    kernels = (
        replace(k, op=rng.choice([k.op, k.op, "Cast", "Add"])) if k.engine == "vector" else k for k in step.kernels
    )
    return replace(step, kernels=tuple(kernels))


def random_scopes(rng: random.Random, step: Workload) -> list[FusedScope]:
    """Scopes that do not overlap, some of them over several streams."""
    scopes, begin = [], 0
    while begin < len(step.kernels):
        end = rng.randint(begin + 1, len(step.kernels))
        if rng.random() < 0.6:
            scopes.append(FusedScope(range(begin, end), rng.random() < 0.5))
        begin = end
    return scopes


def single_reader(step: Workload) -> set[str]:
    """Weights that exactly one kernel reads."""
    names = [read.weight for kernel in step.kernels for read in kernel.weights]
    return {name for name in names if names.count(name) == 1}
