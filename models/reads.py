"""What one kernel reads and writes, collected while it runs in a trace."""

from typing import Any

import torch

from models.dataflow import Producers, Weights, storage_id, touched_bytes
from models.glue import Glue
from models.workload import WeightRead

FULL = (1.0, 1.0, 1.0)


class Reads:
    """What one kernel reads: weights with the share of each, activations, and the kernels they come from."""

    def __init__(self, weights: Weights, producers: Producers) -> None:
        self.known = weights
        self.producers = producers
        self.weights: dict[str, list[float]] = {}
        self.inputs: set[int] = set()
        self.activation_bytes = 0
        self._views: set[tuple] = set()

    def add(self, tensor: torch.Tensor, shares: tuple[float, float, float] = FULL) -> None:
        names = self.known.of(tensor)
        view = (storage_id(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        again = view in self._views
        self._views.add(view)
        self.inputs |= self.producers.of(tensor)
        if again:
            return
        if not names:
            self.activation_bytes += touched_bytes(tensor)
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
