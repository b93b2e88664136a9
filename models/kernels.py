"""Marks functions of the ops layer as NPU kernels, so that a trace sees what the NPU would launch.

Outside a trace a marked function is the function itself: one global is tested, which `torch.compile` guards on.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar

from models.workload import Engine

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Cost:
    """What one call of a kernel costs, from its arguments.

    Attributes:
        flops: operations, a multiply-add counts two.
        flops_dtype: `bf16`, `int8` or `fp32`.
        other_bytes: activation and KV cache bytes; None: the bytes of all tensor arguments that are no parameters,
            plus those of the results.
        shares: argument name -> (low, nominal, high) share of that weight's bytes that is read; 1 if absent.
        comm_bytes, comm_ranks: bytes this die sends and the size of the group, for communication kernels.
        op: overrides the kernel type's name (for example when a weight is quantised).
        fixed_us: the kernel takes this long on any machine (idle time).
    """

    flops: float = 0.0
    flops_dtype: str = "bf16"
    other_bytes: float | None = None
    shares: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    comm_bytes: float = 0.0
    comm_ranks: int = 1
    op: str | None = None
    fixed_us: float | None = None


@dataclass(frozen=True)
class KernelType:
    """The static part of a kernel: the field's name of the operator, its engine and its cost function."""

    op: str
    engine: Engine
    cost: Callable[..., Cost]


class Recorder(Protocol):
    """What a trace installs with `recording`."""

    def kernel(self, kind: KernelType, function: Callable[..., Any], args: tuple, kwargs: dict) -> Any: ...

    def stream(self, label: str) -> AbstractContextManager[None]: ...

    def cores(self, aic: int, aiv: int) -> AbstractContextManager[None]: ...


_recorder: Recorder | None = None


def active_recorder() -> Recorder | None:
    """The recorder of the running trace, None outside a trace."""
    return _recorder


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Send every kernel call, stream switch and core limit to `recorder`."""
    global _recorder
    if _recorder is not None:
        raise RuntimeError("a trace is already running")
    _recorder = recorder
    try:
        yield
    finally:
        _recorder = None


def kernel(
    op: str, engine: Engine, cost: Callable[..., Cost] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare that one call of the decorated function is one kernel on the NPU.

    Args:
        op: the field's name of the operator, e.g. `RmsNorm`.
        engine: the engine that limits it.
        cost: called with the same arguments as the function (before it runs); None: no FLOPs, default bytes.
    """
    kind = KernelType(op, engine, cost or (lambda *a, **k: Cost()))

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if _recorder is None:
                return function(*args, **kwargs)
            return _recorder.kernel(kind, function, args, kwargs)

        return call

    return decorate


def stream_context(label: str) -> AbstractContextManager[None]:
    """The trace's view of `npu_stream_switch`; a null context outside a trace."""
    return nullcontext() if _recorder is None else _recorder.stream(label)


def cores_context(aic: int, aiv: int) -> AbstractContextManager[None]:
    """The trace's view of `limit_core_num`; a null context outside a trace."""
    return nullcontext() if _recorder is None else _recorder.cores(aic, aiv)
