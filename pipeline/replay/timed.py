"""Workloads whose kernels take the times of a profile: of the profile alone, or of the model it was mapped to.

What the simulator does with a measured time: the bytes and operations of the kernel explain part of it, and only that
part can change (`Kernel.measured_us`).
"""

from collections import Counter
from collections.abc import Mapping as Lookup
from dataclasses import dataclass, replace

from models.workload import Kernel, ModuleCall, WeightRead, Workload
from pipeline.mapping.placed import Mapping
from pipeline.mapping.step import Step

# An idle time below this is the gap between two kernels, which the machine model has.
WAIT_US = 1.0


@dataclass(frozen=True)
class Replay:
    """A workload with measured times.

    Attributes:
        workload: the kernels; waits that no kernel explains are kernels of their own (`Idle`).
        of: position in the profile's step -> index in `workload`.
        idle_us: such waits, in sum.
        measured_us: time of the step in the profile, median.
        not_run: kernels of the model that the profile does not have; they take no time in the replay.
    """

    workload: Workload
    of: Lookup[int, int]
    idle_us: float
    measured_us: float
    not_run: tuple[int, ...] = ()


def weight_name(at: int) -> str:
    """Name of the weights of a kernel that no model names: by its position in the step."""
    return f"kernel {at}"


def profile_workload(step: Step, gap: float = 0.0) -> Replay:
    """The step of a profile without a model: kernels wait for what they followed in the profile.

    Args:
        step: of the profile.
        gap: us between two kernels that the machine model adds itself.
    """
    kernels: list[Kernel] = []
    of: dict[int, int] = {}
    idle = 0.0
    for at in range(len(step)):
        before = int(step.before[at])
        stream = step.stream_names[step.streams[at]]
        inputs = (of[before],) if before in of else ()
        wait = _wait(step, at, before) - gap
        if wait >= WAIT_US:
            idle += wait
            kernels.append(_idle(len(kernels), stream, wait, inputs))
            inputs = (len(kernels) - 1,)
        of[at] = len(kernels)
        kernels.append(_kernel(step, at, len(kernels), stream, inputs))
    sizes = {r.weight: r.stored_bytes for k in kernels for r in k.weights}
    return Replay(Workload(tuple(kernels), weight_bytes=sizes), of, idle, step.step_us)


def replayed(workload: Workload, step: Step, mapping: Mapping, gap: float = 0.0) -> Replay:
    """A traced step with the times of a profile.

    Kernels that only the profile has stand where they ran, on the stream of the model that their stream is, or on one
    of their own. Kernels that only the model has (fused into others, or split) take no time and read nothing.

    Args:
        workload: the traced step; idle kernels of it are left out, since the profile shows the waits.
        step: of the profile.
        mapping: of one on the other.
        gap: us between two kernels that the machine model adds itself.
    """
    at_of = {p.kernel: p.at for p in mapping.placed}
    labels = _labels(workload, step, mapping)
    new: list[Kernel] = []
    index: dict[int, int] = {}  # traced kernel -> its new index
    of: dict[int, int] = {}
    idle = 0.0
    waiting = {label: sorted(a for a in mapping.unplaced if labels[int(step.streams[a])] == label) for label in
               dict.fromkeys(labels.values())}  # fmt: skip

    def extra(label: str, until: float) -> None:
        """Put in the kernels of a stream that only the profile has and that started before `until`."""
        mine = waiting.get(label, [])
        while mine and step.start_us[mine[0]] < until:
            at = mine.pop(0)
            before = int(step.before[at])
            of[at] = len(new)
            new.append(_kernel(step, at, len(new), label, (of[before],) if before in of else ()))

    for kernel in workload.kernels:
        if kernel.engine == "idle":
            continue
        inputs = tuple(sorted({index[k] for k in _through_idle(workload, kernel) if k in index}))
        at = at_of.get(kernel.index)
        if at is None:
            index[kernel.index] = len(new)
            new.append(replace(kernel, index=len(new), inputs=inputs, measured_us=0.0))
            continue
        extra(kernel.stream, float(step.start_us[at]))
        feeders = [at_of[k] for k in _through_idle(workload, kernel) if k in at_of]
        wait = _wait(step, at, int(step.before[at]), feeders) - gap
        if wait >= WAIT_US:
            idle += wait
            new.append(_idle(len(new), kernel.stream, wait, inputs))
            inputs = (*inputs, len(new) - 1)
        index[kernel.index] = of[at] = len(new)
        new.append(replace(kernel, index=len(new), inputs=inputs, measured_us=float(step.duration_us[at])))
    for label in waiting:
        extra(label, float("inf"))
    calls = {fqn: tuple(_moved(call, index) for call in made) for fqn, made in workload.calls.items()}
    found = replace(workload, kernels=tuple(new), calls=calls)
    return Replay(found, of, idle, step.step_us, tuple(index[k] for k in mapping.missing if k in index))


def _wait(step: Step, at: int, before: int, feeders: list[int] | None = None) -> float:
    """Idle time before a kernel that neither its stream nor its inputs explain, us."""
    ends = [float(step.end_us[b]) for b in (feeders or []) if b < at]
    if before >= 0:
        ends.append(float(step.end_us[before]))
    return float(step.start_us[at]) - max(ends, default=0.0)


def _idle(index: int, stream: str, us: float, inputs: tuple[int, ...]) -> Kernel:
    return Kernel(index, "Idle", "", "idle", stream, fixed_us=us, inputs=inputs)


def _kernel(step: Step, at: int, index: int, stream: str, inputs: tuple[int, ...]) -> Kernel:
    kind = step.kinds[at]
    stored = float(step.weight_bytes[at])
    reads: tuple[WeightRead, ...] = ()
    if stored > 0:
        low, share, high = (min(1.0, float(b) / stored) for b in step.read_bytes[at])
        reads = (WeightRead(weight_name(at), int(stored), share, low, high),)
    return Kernel(
        index,
        step.op_types[at],
        "",
        kind.engine,  # type: ignore[arg-type]
        stream,
        flops=float(step.flops[at]),
        flops_dtype=step.compute[at],
        weights=reads,
        other_bytes=float(step.other_bytes[at]),
        inputs=inputs,
        measured_us=float(step.duration_us[at]),
    )


def _labels(workload: Workload, step: Step, mapping: Mapping) -> dict[int, str]:
    """Number of a profile's stream -> stream of the model with most of its kernels, else a stream of its own."""
    votes: dict[int, Counter[str]] = {}
    for p in mapping.placed:
        votes.setdefault(int(step.streams[p.at]), Counter())[workload.kernels[p.kernel].stream] += 1
    return {
        number: votes[number].most_common(1)[0][0] if number in votes else f"profile {name}"
        for number, name in enumerate(step.stream_names)
    }


def _through_idle(workload: Workload, kernel: Kernel) -> list[int]:
    """What a kernel waits for, with idle kernels replaced by what they wait for."""
    found: list[int] = []
    open_inputs = list(kernel.inputs)
    while open_inputs:
        k = open_inputs.pop()
        if workload.kernels[k].engine == "idle":
            open_inputs += workload.kernels[k].inputs
        else:
            found.append(k)
    return found


def _moved(call: ModuleCall, index: Lookup[int, int]) -> ModuleCall:
    first, last = call.input_kernel, call.output_kernel
    return replace(
        call,
        input_kernel=None if first is None else index.get(first),
        output_kernel=None if last is None else index.get(last),
    )
