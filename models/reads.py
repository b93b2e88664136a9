"""What one kernel reads and writes, collected while it runs in a trace."""

from dataclasses import dataclass
from typing import Any

import torch

from models.dataflow import Producers, Weights, storage_id, touched_bytes
from models.glue import Glue
from models.workload import WeightRead

FULL = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class ActivationRead:
    """A tensor that is no weight: bytes of it that a kernel reads, and the kernels that made it."""

    bytes: int
    producers: frozenset[int]


class Reads:
    """What one kernel reads: weights with the share of each, activations, and the kernels they come from."""

    def __init__(self, weights: Weights, producers: Producers) -> None:
        self.known = weights
        self.producers = producers
        self.weights: dict[str, list[float]] = {}
        self.inputs: set[int] = set()
        self.activations: dict[tuple, ActivationRead] = {}
        self._views: set[tuple] = set()

    @property
    def activation_bytes(self) -> int:
        return sum(read.bytes for read in self.activations.values())

    def add(
        self, tensor: torch.Tensor, shares: tuple[float, float, float] = FULL, activation_bytes: int | None = None
    ) -> None:
        """Args: shares: of a weight that are read; activation_bytes: read of anything else, all of it by default."""
        names = self.known.of(tensor)
        view = (storage_id(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        again = view in self._views
        self._views.add(view)
        producers = self.producers.of(tensor)
        self.inputs |= producers
        if again:
            return
        if not names:
            size = touched_bytes(tensor) if activation_bytes is None else activation_bytes
            self.activations[view] = ActivationRead(size, producers)
        for name in names:
            part = min(1.0, touched_bytes(tensor) / max(1, self.known.bytes[name]))
            before = self.weights.setdefault(name, [0.0, 0.0, 0.0])
            self.weights[name] = [min(1.0, old + part * share) for old, share in zip(before, shares, strict=True)]

    def weight_reads(self) -> tuple[WeightRead, ...]:
        stored = self.known.bytes
        return tuple(
            WeightRead(name, stored[name], share=nominal, share_low=low, share_high=high)
            for name, (low, nominal, high) in self.weights.items()
        )


class Inside:
    """What happens inside one marked kernel: everything it reads or writes that existed before it."""

    def __init__(self, index: int, reads: Reads) -> None:
        self._index = index
        self._reads = reads
        self._own: set[int] = set()
        self._arguments = frozenset(reads.weights)
        self.written: set[int] = set()

    def is_result(self, tensor: torch.Tensor) -> bool:
        """Whether the kernel made this tensor or wrote into it."""
        return storage_id(tensor) in self._own or storage_id(tensor) in self.written

    def saw(
        self,
        op: Glue,
        tensors: list[torch.Tensor],
        written: list[torch.Tensor],
        fresh: list[torch.Tensor],
    ) -> None:
        for tensor in tensors:
            if storage_id(tensor) in self._own or op.constant:
                continue
            if not op.reads_written and any(tensor is w for w in written):
                continue
            self._reads.inputs |= self._reads.producers.of(tensor)
            if not self._arguments.issuperset(self._reads.known.of(tensor)):
                self._reads.add(tensor)  # a weight that came in by another way than an argument
        for tensor in written:
            if storage_id(tensor) not in self._own:
                self._reads.producers.write(tensor, frozenset((self._index,)))
                self.written.add(storage_id(tensor))
        self._own.update(storage_id(t) for t in fresh)


def own_result(result: Any, inside: Inside) -> Any:
    """The result with own memory where the plain meaning of a kernel gave an argument back unchanged.

    On the NPU such a kernel (a cast that is no cast on CPU) still produces its result; users of the argument must not
    seem to depend on it.
    """
    if isinstance(result, torch.Tensor):
        if inside.is_result(result):
            return result
        return result.clone()
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(own_result(r, inside) for r in result))
    if isinstance(result, tuple | list):
        return type(result)(own_result(r, inside) for r in result)
    return result
