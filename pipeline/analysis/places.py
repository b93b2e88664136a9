"""Places in a step: the key under which kernels of different layers are one, and the record that a result carries."""

from pipeline.analysis.results import KernelRef
from pipeline.analysis.sequence import Sequence

Place = tuple[int, int, int]


def at(step: Sequence, kernel: int) -> Place:
    """(stream, stretch of layers, position in the layer): the same for a kernel of every layer."""
    places = step.places
    return int(step.stream[kernel]), int(places.block[kernel]), int(places.position[kernel])


def kernel_ref(step: Sequence, kernel: int) -> KernelRef:
    """The record of a kernel."""
    stream, block, position = at(step, kernel)
    return KernelRef(
        row=int(step.frame["row"][kernel]),
        name=step.frame["name"][kernel] or "",
        op_type=step.frame["op_type"][kernel] or "",
        stream=step.names[stream],
        block=block,
        layer=int(step.places.layer[kernel]),
        position=position,
        period=step.places.blocks[block][1].period if block >= 0 else 0,
    )
