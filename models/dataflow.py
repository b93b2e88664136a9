"""Which kernels produced the bytes of a tensor: the data flow of a trace, kept per storage."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

NONE: frozenset[int] = frozenset()


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors in a value of nested tuples, lists and mappings, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)


def storage_id(tensor: torch.Tensor) -> int:
    """Identity of the memory behind a tensor; views, `.data` and `.detach()` share it (on `meta`, too)."""
    return tensor.untyped_storage()._cdata


def span(tensor: torch.Tensor) -> tuple[int, int, bool]:
    """First byte, end byte, and whether every byte between them belongs to the tensor."""
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    count = tensor.numel()
    if count == 0 or tensor.is_contiguous():
        return start, start + count * size, True
    extent = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + extent * size, count >= extent


def touched_bytes(tensor: torch.Tensor) -> int:
    """Distinct bytes of a tensor: a broadcast view (stride 0) counts each byte once."""
    start, end, _ = span(tensor)
    return min(tensor.numel() * tensor.element_size(), end - start)


@dataclass(frozen=True)
class Region:
    """The bytes of one tensor in its storage.

    Attributes:
        start, end: first byte and end byte.
        dense: whether every byte between them belongs to the tensor.
        box: (stride in bytes, first coordinate, length) of each dimension, outermost first, if the tensor is a plain
            rectangle in a row-major array of these strides; () if that cannot be told.
    """

    start: int
    end: int
    dense: bool
    box: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Region":
        start, end, dense = span(tensor)
        return cls(start, end, dense, () if dense else _box(tensor))

    def covers(self, other: "Region") -> bool:
        return self.dense and self.start <= other.start and other.end <= self.end

    def meets(self, other: "Region") -> bool:
        """Whether they may have a byte in common; never False when they have."""
        if self.end <= other.start or other.end <= self.start:
            return False
        if not self.box or [b[0] for b in self.box] != [b[0] for b in other.box]:
            return True
        return all(a < b + m and b < a + n for (_, a, n), (_, b, m) in zip(self.box, other.box, strict=True))


def _box(tensor: torch.Tensor) -> tuple[tuple[int, int, int], ...]:
    size = tensor.element_size()
    dims = sorted(
        ((stride * size, length) for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1),
        reverse=True,
    )
    if not dims or dims[-1][0] != size:
        dims.append((size, 1))
    rest = int(tensor.storage_offset()) * size
    box = []
    outer = 0
    for stride, length in dims:
        if stride == 0:
            return ()
        first, rest = divmod(rest, stride)
        if outer and (outer % stride or first + length > outer // stride):
            return ()  # rows run into each other: not a rectangle
        box.append((stride, first, length))
        outer = stride
    return tuple(box)


class Producers:
    """For every byte of every storage, the kernels whose results it holds.

    Works on regions, so that two halves of one buffer that different streams fill stay independent. Where two views of
    a storage cannot be told apart, they are taken to overlap. Storages are kept alive, since the identity of freed
    memory would be used again.
    """

    def __init__(self) -> None:
        self._whole: dict[int, frozenset[int]] = {}  # storages with one producer everywhere: nearly all of them
        self._writes: dict[int, list[tuple[Region, frozenset[int]]]] = {}  # the others, oldest write first
        self._alive: list[torch.UntypedStorage] = []

    def __contains__(self, tensor: torch.Tensor) -> bool:
        key = storage_id(tensor)
        return key in self._whole or key in self._writes

    def of(self, tensor: torch.Tensor) -> frozenset[int]:
        """Kernels whose results the tensor holds; empty for inputs of the step, weights and constants."""
        key = storage_id(tensor)
        whole = self._whole.get(key)
        if whole is not None:
            return whole
        found = NONE
        writes = self._writes.get(key)
        if writes:
            region = Region.of(tensor)
            for written, kernels in reversed(writes):
                if written.meets(region):
                    found |= kernels
                    if written.covers(region):
                        break
        return found

    def create(self, tensor: torch.Tensor, kernels: frozenset[int]) -> None:
        """The tensor's storage is new and all of it comes from these kernels."""
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        self._whole[storage._cdata] = kernels

    def write(self, tensor: torch.Tensor, kernels: frozenset[int]) -> None:
        """These kernels wrote the tensor in place; the rest of its storage keeps its producers."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if tensor not in self:
            self._alive.append(storage)
        region = Region.of(tensor)
        everything = Region(0, storage.nbytes(), True, ())
        before = self._whole.pop(key, None)
        writes = self._writes.pop(key, []) if before is None else [(everything, before)]
        if region.covers(everything):
            self._whole[key] = kernels
        else:
            self._writes[key] = [w for w in writes if not region.covers(w[0])] + [(region, kernels)]


class Weights:
    """Finds the parameter behind a tensor by memory, so views of it (`.t()`, slices, `.data`) are found, too."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.bytes: dict[str, int] = {}
        self._spans: dict[int, list[tuple[int, int, str]]] = {}
        self._alive: list[torch.UntypedStorage] = []
        for name, parameter in module.named_parameters():
            start, end, _ = span(parameter)
            self.bytes[name] = parameter.numel() * parameter.element_size()
            self._spans.setdefault(storage_id(parameter), []).append((start, end, name))

        self._buffers = {storage_id(buffer) for buffer in module.buffers()}

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether it is a parameter, a buffer, or a tensor computed from nothing else."""
        key = storage_id(tensor)
        return key in self._spans or key in self._buffers

    def alias(self, tensor: torch.Tensor, names: list[str]) -> None:
        """This tensor, with memory of its own, was computed from these parameters (or none) and constants."""
        self._alive.append(tensor.untyped_storage())
        end = span(tensor)[1]
        self._spans[storage_id(tensor)] = [(0, end, name) for name in dict.fromkeys(names)]

    def of(self, tensor: torch.Tensor) -> list[str]:
        """FQNs of the parameters whose bytes the tensor shows; [] if it is an activation or a buffer."""
        spans = self._spans.get(storage_id(tensor))
        if not spans:
            return []
        if len(spans) == 1:
            return [spans[0][2]]
        start, end, _ = span(tensor)
        return [name for a, b, name in spans if a < end and start < b]
