"""Which implementation the kernels run, and the streams and cores they run on."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

from torch import Tensor

from models.kernels import cores_context, stream_context
from models.ops import npu, npu_streams, plain

_npu_mode: str | None = None


@contextmanager
def use_npu_operators(exe_mode: str = "ge_graph") -> Iterator[None]:
    """Call the fused `torch_npu` operators, streams and core limits: to run on an NPU, or to lower on `meta`.

    Args:
        exe_mode: `ge_graph` or `npugraph_ex`; they have streams and core limits of their own.

    Raises:
        ImportError: torch_npu is not installed.
    """
    global _npu_mode
    npu.prepare(exe_mode)
    before, _npu_mode = _npu_mode, exe_mode
    try:
        yield
    finally:
        _npu_mode = before


def npu_mode() -> str | None:
    """The execution mode whose operators are in use; None: the plain ones."""
    return _npu_mode


def backend(x: Tensor) -> ModuleType:
    """`models.ops.npu` or `models.ops.plain`, which have the same functions."""
    return npu if _npu_mode or x.device.type == "npu" else plain


def stream(label: str, enabled: bool) -> AbstractContextManager[Any]:
    """Run the kernels inside on a side stream of this name; nothing when not enabled.

    They start after what has been launched before. `join` makes the main stream wait for them.
    """
    if not enabled:
        return nullcontext()
    if _npu_mode == "npugraph_ex":
        return npu_streams.stream(label)
    return npu.stream(label) if _npu_mode else stream_context(label)


def join(label: str, enabled: bool) -> None:
    """Wait for what runs on the side stream. Only npugraph_ex needs to be told: in GE the data flow orders."""
    if enabled and _npu_mode == "npugraph_ex":
        npu_streams.join(label)


def limit_cores(limits: tuple[int, int] | None, enabled: bool) -> AbstractContextManager[Any]:
    """Let the kernels inside use only (AIC, AIV) cores; nothing when not enabled or without limits."""
    if not enabled or limits is None:
        return nullcontext()
    return npu.limit_cores(*limits) if _npu_mode else cores_context(*limits)
