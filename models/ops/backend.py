"""Which implementation the kernels run, and the streams and cores they run on."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

from torch import Tensor

from models.kernels import cores_context, stream_context
from models.ops import npu, plain

_npu_operators = False


@contextmanager
def use_npu_operators() -> Iterator[None]:
    """Call the fused `torch_npu` operators, streams and core limits: to run on an NPU, or to lower on `meta`.

    Raises:
        ImportError: torch_npu is not installed.
    """
    global _npu_operators
    npu.prepare()
    before, _npu_operators = _npu_operators, True
    try:
        yield
    finally:
        _npu_operators = before


def backend(x: Tensor) -> ModuleType:
    """`models.ops.npu` or `models.ops.plain`, which have the same functions."""
    return npu if _npu_operators or x.device.type == "npu" else plain


def stream(label: str, enabled: bool) -> AbstractContextManager[Any]:
    """Run the kernels inside on a side stream of this name; nothing when not enabled."""
    if not enabled:
        return nullcontext()
    return npu.stream(label) if _npu_operators else stream_context(label)


def limit_cores(limits: tuple[int, int] | None, enabled: bool) -> AbstractContextManager[Any]:
    """Let the kernels inside use only (AIC, AIV) cores; nothing when not enabled or without limits."""
    if not enabled or limits is None:
        return nullcontext()
    return npu.limit_cores(*limits) if _npu_operators else cores_context(*limits)
