"""Steady state: what one more layer adds, from short versions of a workload, where that can be verified.

Layer 0 has no copies from a layer before it (and may begin with another norm), and the last layer issues none for a
next one, so the time of a layer is the increment between lengths, not the step divided by its layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.workload import Kernel, Workload
from pipeline.simulator.copies import Copy
from pipeline.simulator.parameters import Parameters
from pipeline.simulator.simulate import StepResult, simulate

_LENGTHS = (2, 3, 4)
_AGREE = 1e-6  # relative difference between increments that still counts as the same


@dataclass(frozen=True)
class SteadyState:
    """The time of one layer.

    Attributes:
        layer: us that one more layer adds to the step.
        step: us of the whole step.
        verified: the layers repeat, the increments from 2 to 3 and from 3 to 4 layers agree, and of four layers the
            second and the third run alike, so that `step` is extrapolated; else all layers were run and `layer` is the
            step divided by them.
        why: what was verified, or why it was not.
    """

    layer: float
    step: float
    verified: bool
    why: str


def steady_state(workload: Workload, copies: Sequence[Copy], parameters: Parameters) -> SteadyState:
    """Time of a layer and of the step, from 2, 3 and 4 layers if that is verified, else from all layers."""
    why = _differences(workload, copies)
    if not why:
        short = [shortened(workload, copies, n) for n in _LENGTHS]
        results = [simulate(*version, parameters) for version in short]
        two, three, four = (result.time for result in results)
        layer = three - two
        if abs((four - three) - layer) > _AGREE * four:
            why = f"a third layer adds {layer:.3f} us, a fourth {four - three:.3f} us"
        elif not _repeats(*short[-1], results[-1]):
            why = "a third layer takes the time of the second, but runs otherwise: copies fall behind"
        else:
            step = three + (workload.layers - 3) * layer
            return SteadyState(layer, step, True, "each layer after the second adds the same time")
    step = simulate(workload, copies, parameters).time
    return SteadyState(step / max(workload.layers, 1), step, False, why)


def shortened(workload: Workload, copies: Sequence[Copy], layers: int) -> tuple[Workload, list[Copy]]:
    """The same model with its first `layers` layers only; what follows takes its input from the last of them.

    Requires layers that repeat. Copies that wait for a kernel of a dropped layer, or bring a weight that only dropped
    layers read, are dropped.
    """
    members = _members(workload)
    last = members[layers - 1]
    stands_for = {old: new for layer in members[layers:] for old, new in zip(layer, last, strict=True)}
    kept = [k for k in workload.kernels if k.index not in stands_for]
    number = {kernel.index: position for position, kernel in enumerate(kept)}
    kernels = tuple(
        replace(k, index=number[k.index], inputs=tuple(sorted({number[stands_for.get(d, d)] for d in k.inputs})))
        for k in kept
    )
    read = {weight.weight for kernel in kernels for weight in kernel.weights}
    dropped = {weight.weight for k in workload.kernels for weight in k.weights} - read
    chain = [
        replace(copy, after=number[copy.after] if copy.after >= 0 else -1)
        for copy in copies
        if copy.after not in stands_for and copy.weight not in dropped
    ]
    return replace(workload, kernels=kernels, layers=layers, calls={}), chain


def _members(workload: Workload) -> list[list[int]]:
    """Kernel numbers of each layer."""
    members: list[list[int]] = [[] for _ in range(workload.layers)]
    for kernel in workload.kernels:
        if kernel.layer is not None:
            members[kernel.layer].append(kernel.index)
    return members


def _differences(workload: Workload, copies: Sequence[Copy]) -> str:
    """Why the layers do not repeat, "" if they do: same kernels, same reads, same copies, from the second layer on."""
    if workload.layers <= _LENGTHS[-1]:
        return f"{workload.layers} layers are too few to shorten"
    members = _members(workload)
    kernels = workload.kernels
    shapes = [[_shape(kernels[i]) for i in layer] for layer in members]
    for layer in range(2, workload.layers):
        if shapes[layer] != shapes[1]:
            return f"layer {layer} has other kernels than layer 1"
    place = {index: (layer, slot) for layer, slots in enumerate(members) for slot, index in enumerate(slots)}
    reader: dict[str, tuple[int, int]] = {}
    for kernel in kernels:
        for read in kernel.weights:
            reader.setdefault(read.weight, place.get(kernel.index, (-1, kernel.index)))
    released: dict[int, list[tuple[int, int, int, float, float]]] = {}
    for copy in copies:
        layer, slot = place.get(copy.after, (-1, copy.after))
        target_layer, target = reader.get(copy.weight, (-1, -1))
        released.setdefault(layer, []).append((slot, target_layer - layer, target, copy.size, copy.offset))
    for layer in range(2, workload.layers):
        # The last layers have no next ones to prefetch for.
        expected = [copy for copy in released.get(1, []) if layer + copy[1] < workload.layers]
        if released.get(layer, []) != expected:
            return f"layer {layer} issues other copies than layer 1"
    return ""


def _repeats(workload: Workload, copies: Sequence[Copy], result: StepResult) -> bool:
    """Whether the second and the third layer run alike, copies included.

    Equal increments are not enough: a chain of copies that falls behind by the same time in each layer costs the same
    in each, until it is a whole layer late.
    """
    members = _members(workload)
    place = {index: layer for layer, slots in enumerate(members) for index in slots}
    alike = []
    for layer in (1, 2):
        began = result.starts[members[layer][0]]
        times = [(result.starts[i] - began, result.ends[i] - began, result.hits[i] / 1e6) for i in members[layer]]
        times += [
            (done.start - began, done.end - began, done.moved / 1e6)
            for copy, done in zip(copies, result.copies, strict=True)
            if place.get(copy.after) == layer
        ]
        alike.append(times)
    return all(
        abs(x - y) <= _AGREE * result.time for a, b in zip(*alike, strict=True) for x, y in zip(a, b, strict=True)
    )


def _shape(kernel: Kernel) -> tuple[object, ...]:
    reads = tuple((w.stored_bytes, w.share, w.share_low, w.share_high) for w in kernel.weights)
    cost = (kernel.flops, kernel.flops_dtype, kernel.other_bytes, kernel.comm_bytes, kernel.comm_ranks, kernel.fixed_us)
    return (kernel.op, kernel.engine, kernel.stream, kernel.cores, reads, *cost)
