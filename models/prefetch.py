"""Weight prefetch as seen from a model: the switchable call, its stand-in without an NPU, and an observer.

Rewritten files of this tree import `npu_prefetch` and `check_prefetch`; files of other trees carry their own copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

OPERATOR = "npu::npu_prefetch"
EXE_MODES = ("eager", "ge_graph", "npugraph_ex")


class PrefetchCall(NamedTuple):
    """One executed call, with the tensors themselves, so that identity can be compared."""

    weight: torch.Tensor
    dependency: torch.Tensor | None
    max_size: int
    offset: int


def npu_prefetch(enabled: bool, weight: torch.Tensor, dependency: torch.Tensor, max_size: int, offset: int = 0) -> None:
    """Copy the first `max_size` bytes of `weight`, from `offset`, into L2 once `dependency` has been produced.

    Args:
        enabled: does nothing if false.
        weight: the parameter that a later kernel reads.
        dependency: only orders; it is not read.
        max_size: bytes; the operator clamps it to the weight.
        offset: first byte.
    """
    if enabled:
        torch.ops.npu.npu_prefetch(weight, dependency, max_size, offset)


def check_prefetch(config: Any) -> None:
    """Refuse an execution mode in which prefetch does not work. Reads the config only, never the device.

    Args:
        config: reads `enable_prefetch`, `exe_mode` (absent: `eager`, for testing) and `enable_multi_stream`.

    Raises:
        ValueError: prefetch is on in an unsupported mode, or in a graph mode without multi-stream.
    """
    if not getattr(config, "enable_prefetch", False):
        return
    exe_mode = getattr(config, "exe_mode", "eager")
    if exe_mode not in EXE_MODES:
        raise ValueError(f"enable_prefetch does not work in exe_mode {exe_mode}")
    if exe_mode != "eager" and not getattr(config, "enable_multi_stream", 0):
        raise ValueError(f"enable_prefetch in exe_mode {exe_mode} needs enable_multi_stream")


@contextmanager
def observe(into: list[PrefetchCall] | None = None) -> Iterator[list[PrefetchCall]]:
    """Collect every prefetch executed on CPU (or traced on `meta`) inside the block, in order.

    Args:
        into: append to this list; one with an `append` of its own sees each call at the moment it is made.

    Yields:
        A list that grows as the model runs. It holds the tensors, so none of their addresses is reused meanwhile.
    """
    calls: list[PrefetchCall] = [] if into is None else into
    _observers.append(calls)
    try:
        yield calls
    finally:
        _observers[:] = [observer for observer in _observers if observer is not calls]


_observers: list[list[PrefetchCall]] = []


def _on_cpu(weight: torch.Tensor, dependency: torch.Tensor | None, max_size: int, offset: int = 0) -> None:
    for calls in _observers:
        calls.append(PrefetchCall(weight, dependency, max_size, offset))


def _on_meta(weight: torch.Tensor, dependency: torch.Tensor | None, max_size: int, offset: int = 0) -> None:
    """Shapes only: also what a compiler runs while it traces."""


def _register() -> torch.library.Library:
    """Define the operator unless torch_npu has, and give it a meaning on the devices that have none yet."""
    library = torch.library.Library("npu", "FRAGMENT")
    if not hasattr(torch.ops.npu, "npu_prefetch"):
        library.define("npu_prefetch(Tensor input, Tensor? dependency, int max_size, int offset=0) -> ()")
    for device, implementation in (("CPU", _on_cpu), ("Meta", _on_meta)):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(OPERATOR, device):
            library.impl("npu_prefetch", implementation, device)
    # It returns nothing, so without this a compiler may drop it as dead code.
    torch.fx.node.has_side_effect(torch.ops.npu.npu_prefetch.default)
    return library


_library = _register()
