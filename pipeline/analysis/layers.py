"""Decoder layers in a sequence of kernels: the longest stretch that repeats, per stream."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Every period is tried in a sequence of at most so many kernels, else only the distances between equal kernels.
_TRY_ALL = 4000
_FEWEST = 4  # kernels that a layer has at least; less is a repeated operator, unless ...
_SMALL = 2  # ... a stream has hardly anything else: so many kernels in each of at least `_FEWEST` layers
_DEPTH = 4  # stretches beside the longest one that are looked for: dense layers before the MoE layers, say


@dataclass(frozen=True)
class Block:
    """A stretch of equal layers.

    Attributes:
        first: position of its first kernel in the sequence.
        period: kernels of one layer.
        layers: how often it comes.
    """

    first: int
    period: int
    layers: int

    @property
    def end(self) -> int:
        """Position after its last kernel."""
        return self.first + self.period * self.layers


def find_blocks(idents: Sequence[int] | np.ndarray) -> list[Block]:
    """The stretches of equal layers of one stream, by position.

    Args:
        idents: what each kernel is, as numbers; equal numbers are equal kernels.
    """
    found: list[Block] = []
    open_ends = [(0, len(idents), _DEPTH)]
    values = np.asarray(idents, dtype=np.int64)
    while open_ends:
        begin, end, depth = open_ends.pop()
        block = _longest(values[begin:end], len(values)) if depth else None
        if block is None:
            continue
        block = Block(begin + block.first, block.period, block.layers)
        found.append(block)
        open_ends += [(begin, block.first, depth - 1), (block.end, end, depth - 1)]
    return sorted(found, key=lambda b: b.first)


def _longest(values: np.ndarray, whole: int) -> Block | None:
    """The stretch that covers most kernels; of several periods the shortest. `whole` is the length of the stream."""
    n = len(values)
    best: Block | None = None
    for period in _periods(values):
        if best is not None and n <= best.period * best.layers:
            break
        first, length = _run(values[:-period] == values[period:])
        layers = 1 + length // period
        if layers < 2 or (period < _FEWEST and (layers < _FEWEST or 2 * layers * period < whole)):
            continue
        if best is None or layers * period > best.layers * best.period:
            best = Block(first, period, layers)
    return best


def _periods(values: np.ndarray) -> list[int]:
    n = len(values)
    if n <= _TRY_ALL:
        return list(range(_SMALL, n // 2 + 1))
    order = np.argsort(values, kind="stable")
    equal = values[order][1:] == values[order][:-1]
    gaps, counts = np.unique(np.diff(order)[equal], return_counts=True)
    common = gaps[np.argsort(-counts * gaps, kind="stable")[:64]]
    return sorted(int(g) for g in common if _SMALL <= g <= n // 2)


def _run(equal: np.ndarray) -> tuple[int, int]:
    """First index and length of the longest run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.astype(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(edges[::2][longest]), int(lengths[longest])


@dataclass(frozen=True)
class Places:
    """Where every kernel of a step stands.

    Attributes:
        block: number of its stretch of equal layers, over all streams; -1 outside.
        layer: which layer of the stretch, -1 outside.
        position: which kernel of the layer; outside, the position in the stream.
        blocks: the stretches, with their stream.
    """

    block: np.ndarray
    layer: np.ndarray
    position: np.ndarray
    blocks: tuple[tuple[int, Block], ...]


def find_places(streams: np.ndarray, idents: np.ndarray) -> Places:
    """Layers on every stream.

    Args:
        streams: number of the stream per kernel, in order of time.
        idents: what each kernel is.
    """
    block, layer, position = (np.full(len(streams), -1) for _ in range(3))
    blocks: list[tuple[int, Block]] = []
    for stream in np.unique(streams):
        mine = np.flatnonzero(streams == stream)
        position[mine] = np.arange(len(mine))
        for found in find_blocks(idents[mine]):
            inside = np.arange(found.period * found.layers)
            members = mine[found.first : found.end]
            block[members] = len(blocks)
            layer[members] = inside // found.period
            position[members] = inside % found.period
            blocks.append((int(stream), found))
    return Places(block, layer, position, tuple(blocks))
