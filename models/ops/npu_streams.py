"""Side streams of npugraph_ex: there a data flow between streams orders nothing, events do."""

from contextlib import AbstractContextManager
from typing import Any

import torch

LABELS = ("moe", "shared_experts")  # side streams of the models here

_streams: dict[str, Any] = {}


def prepare() -> None:
    """Create the streams: not inside a function that is being compiled."""
    npu: Any = torch.npu  # type: ignore[attr-defined]
    for label in LABELS:
        _streams.setdefault(label, npu.Stream())


def stream(label: str) -> AbstractContextManager[Any]:
    """The kernels inside run on the side stream, after what has been launched on the current one."""
    side = _streams[label]
    wait(side, torch.npu.current_stream())  # type: ignore[attr-defined]
    return torch.npu.stream(side)  # type: ignore[attr-defined]


def join(label: str) -> None:
    """The current stream waits for everything on the side stream."""
    wait(torch.npu.current_stream(), _streams[label])  # type: ignore[attr-defined]


def wait(stream: Any, other: Any) -> None:
    """What is launched on `stream` from now on starts after everything on `other`."""
    event = torch.npu.Event()  # type: ignore[attr-defined]
    event.record(other)
    event.wait(stream)
