"""Collectives over named groups. Each returns a new tensor.

With `torch.distributed` and `init_groups` they are real. In one process they are a loopback: every rank of a group
is taken to hold the same data, so gathering repeats, reducing and scattering keeps the own chunk. The loopback keeps
shapes, structure and data flow of the deployment; its numbers are those of no deployment.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from models.deployment import PARALLEL_SIZES, Deployment

_groups: dict[str, dist.ProcessGroup] = {}


def init_groups(deployment: Deployment) -> None:
    """Create the deployment's process groups (`attn_tp`, `moe_ep`, ...) of this process.

    Groups hold consecutive ranks, except that expert-parallel ranks are `moe_tp_size` apart. `torch.distributed`
    must be initialised with `deployment.world_size` ranks.
    """
    if dist.get_world_size() != deployment.world_size:
        raise ValueError(f"{dist.get_world_size()} processes, but the deployment has {deployment.world_size}")
    _groups.clear()
    for field in PARALLEL_SIZES:
        size, name = getattr(deployment, field), field.removesuffix("_size")
        if size == 1:
            continue
        stride = deployment.moe_tp_size if name == "moe_ep" else 1
        span = size * stride
        firsts = [base + i for base in range(0, deployment.world_size, span) for i in range(stride)]
        ranks = [[first + i * stride for i in range(size)] for first in firsts]
        group, _ = dist.new_subgroups_by_enumeration(ranks)
        _groups[name] = group


def clear_groups() -> None:
    """Back to the loopback."""
    _groups.clear()


def is_loopback(group: str) -> bool:
    return group not in _groups


def rank(group: str) -> int:
    """This process's rank in the group; 0 in the loopback."""
    return 0 if is_loopback(group) else dist.get_rank(_groups[group])


def all_gather(x: Tensor, group: str, size: int) -> Tensor:
    """[n, ...] of every rank -> [size n, ...]."""
    if is_loopback(group):
        return x.repeat(size, *(1 for _ in x.shape[1:]))
    out = x.new_empty(size * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x.contiguous(), group=_groups[group])
    return out


def reduce_scatter(x: Tensor, group: str, size: int) -> Tensor:
    """[size n, ...] of every rank -> the sum of this rank's chunk, [n, ...]."""
    n = x.shape[0] // size
    if is_loopback(group):
        return x[:n].clone()
    out = x.new_empty(n, *x.shape[1:])
    dist.reduce_scatter_tensor(out, x.contiguous(), group=_groups[group])
    return out


def all_to_all(x: Tensor, group: str, size: int) -> Tensor:
    """Chunk r of [size n, ...] goes to rank r; the result holds this rank's chunk of every rank, [size n, ...]."""
    n = x.shape[0] // size
    if is_loopback(group):
        return x[:n].repeat(size, *(1 for _ in x.shape[1:]))
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x.contiguous(), group=_groups[group])
    return out


def all_reduce(x: Tensor, group: str, size: int) -> Tensor:
    """The sum over the ranks."""
    out = x.clone()
    if not is_loopback(group):
        dist.all_reduce(out, group=_groups[group])
    return out


def send(x: Tensor) -> Tensor:
    """To the other side of an attention / FFN disaggregated deployment; the two sides are not connected yet."""
    return x.clone()


def recv(x: Tensor) -> Tensor:
    """Shaped like x, from the other side. What it sends went through a norm: keeps the loopback of order one."""
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)


def communicator(group: str) -> str:
    """Name of the group's HCCL communicator, for fused operators that communicate; the group's name without one."""
    if is_loopback(group):
        return group
    backend = _groups[group]._get_backend(torch.device("npu"))
    return backend.get_hccl_comm_name(dist.get_rank())  # type: ignore[attr-defined]
