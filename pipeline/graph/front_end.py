"""Imports torch_npu and torchair in the worker, and replaces what needs a device. Nothing else may import torch before.

Every replacement is here, with the reason. Without CANN they are needed; with a real CANN only the last two are made,
because the graph is read, not run.
"""

import contextlib
import importlib
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.graph import stubs


@dataclass(frozen=True)
class Target:
    """The device that the converters are told they compile for.

    Attributes:
        name: of the device, as torch_npu reports it.
        soc: torch_npu's number of it.
    """

    name: str
    soc: int


# Generation of a machine model -> one of its devices. A choice: which one was not found to matter for the graph.
TARGETS = {
    "a2": Target("Ascend910B3", 222),
    "a3": Target("Ascend910_9382", 252),
    "950": Target("Ascend950PR_9589", 260),
}
_NEWEST_CANN = (9, 9, 9)


def start(folder: str | None, package: str, directory: Path, target: Target, exe_mode: str) -> bool:
    """Import torch, torch_npu and torchair, for one execution mode.

    Args:
        folder: to be put on the module path; None if torch_npu is installed.
        package: folder of torch_npu.
        directory: for the stub libraries; must live as long as the process.
        target: the device to compile for.
        exe_mode: `ge_graph` or `npugraph_ex`.

    Returns:
        Whether a real CANN is behind it.
    """
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # else importing torch imports torch_npu, before the stubs
    if folder is not None:
        sys.path.append(folder)
    cann = stubs.real_cann()
    if not cann:
        torch_package = importlib.util.find_spec("torch")
        assert torch_package is not None and torch_package.submodule_search_locations
        missing = stubs.find_missing(Path(package), Path(torch_package.submodule_search_locations[0]))
        stubs.preload(missing, directory)
    with _signal_handlers_kept():
        for name in ("torch_npu", "torchair", "torchair.scope", "torchair.ops", "npugraph_ex"):
            importlib.import_module(name)
    if not cann:
        _no_engine()
        _be(target)
        if exe_mode == "npugraph_ex":  # GE knows streams by their labels only
            _fake_streams()
    _run_nothing()
    return cann


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """torchair installs handlers that swallow SIGTERM: the process would not end."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _no_engine() -> None:
    """There is no GE engine to initialise, and no CANN to ask which operators and attributes it knows: it knows all."""
    converter = importlib.import_module("torchair._ge_concrete_graph.fx2ge_converter")
    converter.initialize_graph_engine = lambda *args, **kwargs: None  # type: ignore[attr-defined]
    compatibility = importlib.import_module("torchair._ge_concrete_graph.compat_ir")
    compatibility.is_cann_compat = lambda *args, **kwargs: ""  # type: ignore[attr-defined]


def _be(target: Target) -> None:
    """Converters and meta functions ask for the device and the version of CANN, which would initialise a device."""
    torch_npu = importlib.import_module("torch_npu")
    torch_npu.npu.get_device_name = lambda *args, **kwargs: target.name
    torch_npu._C._is_gte_cann_version = lambda wanted, module="CANN": _version(wanted) <= _NEWEST_CANN
    for name, module in list(sys.modules.items()):  # some modules hold the function by its name
        if name.startswith("torch_npu") and "get_soc_version" in getattr(module, "__dict__", {}):
            module.get_soc_version = lambda: target.soc  # type: ignore[attr-defined]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


_DEVICE_TYPE = 20  # torch's number of the NPU
_serial = itertools.count(1)


def _fake_streams() -> None:
    """Streams are ids of a device: these have ids only. dynamo traces switches and events as it does with a device.

    The functions whose identity dynamo knows (`torch.npu.current_stream`) stay; what they call is replaced.
    """
    torch: Any = importlib.import_module("torch")
    torch_npu: Any = importlib.import_module("torch_npu")

    class Stream(torch.Stream):
        """`torch.npu.Stream` without a device."""

        def __new__(cls, device: Any = None, priority: int = 0, **ids: int) -> Any:
            default = {"stream_id": 0 if ids else next(_serial), "device_index": 0, "device_type": _DEVICE_TYPE}
            return super().__new__(cls, **(default | ids))

    inner: list[Any] = [importlib.import_module(f"torch_npu.npu.{name}") for name in ("utils", "streams")]
    for module in (torch.npu, torch_npu.npu, *inner):
        module.Stream = Stream
        module.current_device = lambda: 0
    main = Stream(stream_id=0)
    torch_npu.npu._lazy_init = lambda: None
    torch_npu._C._npu_getCurrentStream = lambda device: (0, 0, _DEVICE_TYPE)
    torch_npu._C._npu_setStream = lambda **ids: None
    torch._C._accelerator_getStream = lambda device: main
    torch._C._accelerator_getDeviceIndex = lambda: 0
    torch.accelerator.is_available = lambda: True


def _run_nothing() -> None:
    """A compiled graph would be loaded and run: it returns empty results of the right shapes instead."""
    for name in ("torchair.npu_fx_compiler", "npugraph_ex.npu_fx_compiler"):
        compiled: Any = importlib.import_module(name)._CompiledFxGraph
        compiled.__call__ = _empty_results


def _empty_results(compiled: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    import torch

    def empty(value: Any) -> Any:
        value = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)

    output = next(node for node in compiled.runner.fx_graph.graph.nodes if node.op == "output")
    return tuple(empty(value) for value in output.args[0])


def wrap_method(owner: Any, name: str, after: Callable[..., None]) -> None:
    """Call `after(result, self, *args, **kwargs)` whenever the method has returned."""
    original = getattr(owner, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        after(result, self, *args, **kwargs)
        return result

    setattr(owner, name, method)
