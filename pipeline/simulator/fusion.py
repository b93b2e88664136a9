"""SuperKernel scopes as the simulator sees them.

In a static graph the gap between two kernels is about 0.1 us; the cost of scheduling sits inside each kernel's fixed
time. Inside a SuperKernel every kernel after the first loses up to `launch` of its fixed time, and `fused_gap` replaces
the gap. A kernel that does not fuse ends one SuperKernel, and the next begins after it. Kernels of several streams that
become one SuperKernel run one after the other; with `stream-fusion` pure Cube and pure Vector kernels may overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.workload import Workload
from pipeline.fusable import runs
from pipeline.simulator.pack import PackedWorkload


@dataclass(frozen=True)
class FusedScope:
    """One scope.

    Attributes:
        kernels: range of kernel indices, program order.
        stream_fusion: whether kernels of several streams may overlap inside.
    """

    kernels: range
    stream_fusion: bool = False


def fuse(packed: PackedWorkload, workload: Workload, scopes: Sequence[FusedScope]) -> PackedWorkload:
    """The same workload with its kernels in SuperKernels.

    Raises:
        ValueError: scopes overlap.
    """
    if not scopes:
        return packed
    arrays = packed.arrays
    part, joined, overlap = arrays.part.copy(), arrays.joined.copy(), arrays.overlap.copy()
    taken: set[int] = set()
    number = 0
    for scope in scopes:
        if not taken.isdisjoint(scope.kernels):
            raise ValueError(f"scopes overlap: kernels {scope.kernels.start} to {scope.kernels.stop - 1}")
        taken.update(scope.kernels)
        members = workload.kernels[scope.kernels.start : scope.kernels.stop]
        overlap[scope.kernels.start : scope.kernels.stop] = scope.stream_fusion
        for column in (0, 1):
            for run in runs(members, sometimes=bool(column)):
                part[run, column] = number
                joined[run[1:], column] = 1
                number += 1
    return replace(packed, arrays=arrays._replace(part=part, joined=joined, overlap=overlap))
