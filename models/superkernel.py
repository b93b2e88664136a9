"""SuperKernel scopes as seen from a model: the switchable scope, its stand-in without an NPU, and an observer.

Rewritten files of this tree import `superkernel_scope` and `check_superkernel`; files of other trees carry their own
copy. A scope is a pair of operators, as in torchair, so that it survives `torch.compile(fullgraph=True)`, and so that
hooks of two different modules can open and close one.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from models.ops import backend


class ScopeEvent(NamedTuple):
    """A scope was opened or closed."""

    opened: bool
    label: str
    options: str


class _Scope:
    """Opens and closes by operators. A class, not a generator: it has no `try` / `finally` that dynamo would trace."""

    def __init__(self, label: str, options: str) -> None:
        self.label, self.options = label, options

    def __enter__(self) -> None:
        open_scope(self.label, self.options)

    def __exit__(self, *error: object) -> None:
        close_scope(self.label, self.options)


def superkernel_scope(enabled: bool, scope: str, options: str = "") -> AbstractContextManager[Any]:
    """Compile the kernels launched inside into one SuperKernel.

    Args:
        enabled: a null context if false.
        scope: the label; kernels under the same label are one scope.
        options: of the compiler, `name=value` joined by `:`. Only GE takes them.
    """
    return _Scope(scope, options) if enabled else nullcontext()


def open_scope(label: str, options: str = "") -> None:
    """Kernels launched from now on belong to the scope, until `close_scope`."""
    mode = backend.npu_mode()
    if mode == "ge_graph":
        keys = ["_super_kernel_scope", "_super_kernel_options"]
        torch.ops.air.scope_enter(keys, [label, options])
    elif mode == "npugraph_ex":
        torch.ops.npu.super_kernel_scope_begin(label)
    else:
        torch.ops.npu_recipes_scope.open(label, options)


def close_scope(label: str, options: str = "") -> None:
    """The end of the scope that was opened with the same label and options."""
    mode = backend.npu_mode()
    if mode == "ge_graph":
        torch.ops.air.scope_exit()
    elif mode == "npugraph_ex":
        torch.ops.npu.super_kernel_scope_end(label)
    else:
        torch.ops.npu_recipes_scope.close(label, options)


def check_superkernel(config: Any, allow_npugraph_ex: bool = False) -> None:
    """Refuse an execution mode without SuperKernel. Reads the config only, never the device.

    Args:
        config: reads `enable_superkernel` and `exe_mode` (absent: `eager`).
        allow_npugraph_ex: whether the recipe opted in to npugraph_ex.

    Raises:
        ValueError: SuperKernel is on in another mode.
    """
    if not getattr(config, "enable_superkernel", False):
        return
    exe_mode = getattr(config, "exe_mode", "eager")
    if exe_mode != "ge_graph" and not (allow_npugraph_ex and exe_mode == "npugraph_ex"):
        raise ValueError(f"enable_superkernel does not work in exe_mode {exe_mode}")


@contextmanager
def observe(into: list[ScopeEvent] | None = None) -> Iterator[list[ScopeEvent]]:
    """Collect every scope that opens or closes without an NPU inside the block, in order.

    Args:
        into: append to this list; one with an `append` of its own sees each event at the moment it happens.

    Yields:
        A list that grows as the model runs.
    """
    events: list[ScopeEvent] = [] if into is None else into
    _observers.append(events)
    try:
        yield events
    finally:
        _observers[:] = [observer for observer in _observers if observer is not events]


_observers: list[list[ScopeEvent]] = []


def _note(opened: bool) -> Any:
    def note(label: str, options: str) -> None:
        for events in _observers:
            events.append(ScopeEvent(opened, label, options))

    return note


def _register() -> torch.library.Library:
    library = torch.library.Library("npu_recipes_scope", "DEF")
    for name, opened in (("open", True), ("close", False)):
        library.define(f"{name}(str label, str options) -> ()")
        # They take no tensor, so no device decides.
        library.impl(name, _note(opened), "BackendSelect")
        library.impl(name, lambda label, options: None, "Meta")
        # They return nothing, so without this a compiler may drop them as dead code.
        torch.fx.node.has_side_effect(getattr(torch.ops.npu_recipes_scope, name).default)
    return library


def _stand_in() -> torch.library.Library | None:
    """torchair's operators, which files of other trees call, where there is no torchair; None where there may be."""
    if "torch_npu" in sys.modules or hasattr(torch.ops.air, "scope_enter"):
        return None
    opened: list[tuple[str, str]] = []

    def enter(names: list[str], values: list[str]) -> None:
        found = dict(zip(names, values, strict=True))
        opened.append((found.get("_super_kernel_scope", ""), found.get("_super_kernel_options", "")))
        _note(True)(*opened[-1])

    def leave() -> None:
        _note(False)(*(opened.pop() if opened else ("", "")))

    library = torch.library.Library("air", "DEF")
    meanings = {"scope_enter(str[] names, str[] values) -> ()": enter, "scope_exit() -> ()": leave}
    for signature, meaning in meanings.items():
        name = signature.partition("(")[0]
        library.define(signature)
        library.impl(name, meaning, "BackendSelect")
        library.impl(name, lambda *values: None, "Meta")
        torch.fx.node.has_side_effect(getattr(torch.ops.air, name).default)
    return library


_library = _register()
_torchair = _stand_in()
