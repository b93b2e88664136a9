"""Collectives as kernels."""

from torch import Tensor

from models.kernels import kernel
from models.ops import collectives, costs


@kernel("AllGather", "communication", costs.all_gather)
def all_gather(x: Tensor, group: str, size: int) -> Tensor:
    """[n, ...] of each rank -> [size n, ...]."""
    return collectives.all_gather(x, group, size)


@kernel("ReduceScatter", "communication", costs.reduce_scatter)
def reduce_scatter(x: Tensor, group: str, size: int) -> Tensor:
    """[size n, ...] of each rank -> this rank's chunk of the sum, [n, ...]."""
    return collectives.reduce_scatter(x, group, size)


@kernel("AllToAll", "communication", costs.all_to_all)
def all_to_all(x: Tensor, group: str, size: int) -> Tensor:
    """Chunk r of [size n, ...] goes to rank r."""
    return collectives.all_to_all(x, group, size)


@kernel("AllReduce", "communication", costs.all_reduce)
def all_reduce(x: Tensor, group: str, size: int) -> Tensor:
    """The sum over the ranks."""
    return collectives.all_reduce(x, group, size)


@kernel("Send", "communication", costs.send)
def send(x: Tensor) -> Tensor:
    """Sends x to the other side of an attention / FFN disaggregated deployment; a copy stands for what arrives."""
    return collectives.send(x)


@kernel("Recv", "communication", costs.recv)
def recv(x: Tensor) -> Tensor:
    """Receives a tensor shaped like x from the other side; in one process, x normalised."""
    return collectives.recv(x)
