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
    if not enabled:
        return
    if _side_stream is None:  # the runtime owns the stream
        torch.ops.npu.npu_prefetch(weight, dependency, max_size, offset)
        return
    _wait(_side_stream, torch.npu.current_stream())  # type: ignore[attr-defined]
    with torch.npu.stream(_side_stream):  # type: ignore[attr-defined]
        torch.ops.npu.npu_prefetch(weight, dependency, max_size, offset)


def check_prefetch(config: Any, joined: bool = False) -> None:
    """Refuse an execution mode in which prefetch does not work, and open the side stream of the one that needs it.

    Reads the config only, never the device.

    Args:
        config: reads `enable_prefetch`, `exe_mode` (absent: `eager`, for testing) and `enable_multi_stream`.
        joined: whether the model calls `join_prefetch` at the end of its step, as npugraph_ex needs.

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
    if exe_mode == "npugraph_ex" and not joined:
        raise ValueError("enable_prefetch in exe_mode npugraph_ex needs source that was transformed for it")
    use_side_stream(exe_mode)


def use_side_stream(exe_mode: str) -> None:
    """Open the stream for prefetches in npugraph_ex; in other modes the runtime owns it.

    A process runs one execution mode at a time: it is that of the model that was made last with prefetch on.
    """
    global _side_stream
    npu: Any = getattr(torch, "npu", None)  # without an NPU everything runs in order
    _side_stream = npu.Stream() if exe_mode == "npugraph_ex" and npu is not None else None


def join_prefetch(enabled: bool) -> None:
    """At the end of the step: wait for the side stream of npugraph_ex. Capture of a graph fails without (107025).

    Args:
        enabled: does nothing if false; in other modes there is nothing to wait for.
    """
    if enabled and _side_stream is not None:
        _wait(torch.npu.current_stream(), _side_stream)  # type: ignore[attr-defined]


def _wait(stream: Any, other: Any) -> None:
    """What is launched on `stream` from now on starts after everything on `other`."""
    event = torch.npu.Event()  # type: ignore[attr-defined]
    event.record(other)
    event.wait(stream)


_side_stream: Any = None


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
