"""A workload: the kernels of one decode step on one die, in program order, and what they read.

Bytes are integers or floats of one die's share after sharding; FLOPs count a multiply-add as two.
"""

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

Engine = Literal["cube", "vector", "mix", "communication", "idle"]


@dataclass(frozen=True)
class WeightRead:
    """One weight that a kernel reads.

    Attributes:
        weight: FQN of the parameter.
        stored_bytes: bytes of the whole local weight.
        share: share of these bytes that is read; below 1 for expert stacks, 1 - (1 - k/E)^tokens.
        share_low, share_high: the band around `share` (skewed routing, padding).
    """

    weight: str
    stored_bytes: int
    share: float = 1.0
    share_low: float = 1.0
    share_high: float = 1.0


@dataclass(frozen=True)
class Kernel:
    """One kernel launch.

    Attributes:
        index: position in program order.
        op: the field's name of the operator, e.g. `QuantBatchMatmul`, `MLAProlog`, `RmsNorm`.
        module: FQN of the innermost module that launched it.
        engine: which engine limits it; `communication` kernels use the link, `idle` is host or peer time.
        stream: label of the stream, `main` by default.
        cores: AIC cores it may use; 0 means all of the die.
        flops: floating (or integer) operations.
        flops_dtype: `bf16`, `int8` or `fp32`: which peak applies.
        weights: the parameters it reads.
        other_bytes: activations and KV cache read and written, bytes.
        comm_bytes: bytes this die sends, communication kernels only.
        comm_ranks: ranks in the group, communication kernels only.
        inputs: indices of the kernels that produced its inputs (data flow, all streams).
        layer: decoder layer index, None outside the layers.
        fixed_us: time it takes whatever the machine (idle kernels), else None.
        measured_us: time a profile shows for it, launch included; its bytes and operations explain part of that time,
            the rest does not change with a plan. None: modelled.
    """

    index: int
    op: str
    module: str
    engine: Engine
    stream: str = "main"
    cores: int = 0
    flops: float = 0.0
    flops_dtype: str = "bf16"
    weights: tuple[WeightRead, ...] = ()
    other_bytes: float = 0.0
    comm_bytes: float = 0.0
    comm_ranks: int = 1
    inputs: tuple[int, ...] = ()
    layer: int | None = None
    fixed_us: float | None = None
    measured_us: float | None = None


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module in the step.

    Attributes:
        fqn: the module.
        enter, exit: event numbers; all enters and exits of a step are numbered in one sequence.
        input_kernel, output_kernel: the kernel that produced the first tensor input / output; None when the tensor
            is an input of the step or a weight.
    """

    fqn: str
    enter: int
    exit: int
    input_kernel: int | None
    output_kernel: int | None


@dataclass(frozen=True)
class Workload:
    """One decode step.

    Attributes:
        kernels: in program order; `kernels[k].index == k`.
        calls: module FQN -> its calls in this step, in order.
        layers: number of decoder layers.
        tokens: output tokens per step on this die (batch x accepted tokens), for throughput.
        weight_bytes: FQN of every parameter -> local bytes.
    """

    kernels: tuple[Kernel, ...]
    calls: dict[str, tuple[ModuleCall, ...]] = field(default_factory=dict)
    layers: int = 0
    tokens: float = 1.0
    weight_bytes: dict[str, int] = field(default_factory=dict)

    @cached_property
    def _readers(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        for kernel in self.kernels:
            for weight in dict.fromkeys(w.weight for w in kernel.weights):
                found.setdefault(weight, []).append(kernel.index)
        return {weight: tuple(indices) for weight, indices in found.items()}

    @cached_property
    def _ancestors(self) -> list[int]:
        """For every kernel, the set of its ancestors as the bits of an integer."""
        masks: list[int] = []
        for kernel in self.kernels:
            mask = 0
            for k in kernel.inputs:  # inputs come earlier in program order
                mask |= masks[k] | 1 << k
            masks.append(mask)
        return masks

    def readers(self, weight: str) -> tuple[int, ...]:
        """Indices of the kernels that read this parameter, in program order."""
        return self._readers.get(weight, ())

    def ancestors(self, kernel: int) -> set[int]:
        """Indices of all kernels whose results flow into `kernel` (itself not included)."""
        mask = self._ancestors[kernel]
        return {k for k in range(kernel) if mask >> k & 1}

    def is_ancestor(self, ancestor: int, kernel: int) -> bool:
        """Whether results of `ancestor` flow into `kernel`, directly or through others."""
        return bool(self._ancestors[kernel] >> ancestor & 1)

    def to_json(self) -> dict[str, Any]:
        """A compact listing: kernels without the fields that have their default value."""
        return {
            "layers": self.layers,
            "tokens": self.tokens,
            "kernels": [_kernel_json(k) for k in self.kernels],
        }


def _kernel_json(kernel: Kernel) -> dict[str, Any]:
    listing: dict[str, Any] = {}
    for f in fields(kernel):
        value = getattr(kernel, f.name)
        if f.name == "weights":
            value = {w.weight: _read_json(w) for w in value}
        elif f.name == "inputs":
            value = list(value)
        if value != f.default and value not in ({}, []):
            listing[f.name] = value
    return listing


def _read_json(read: WeightRead) -> dict[str, Any]:
    listing: dict[str, Any] = {"bytes": read.stored_bytes}
    if (read.share_low, read.share, read.share_high) != (1.0, 1.0, 1.0):
        listing["share"] = [read.share_low, read.share, read.share_high]
    return listing
