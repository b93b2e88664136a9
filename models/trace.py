"""Trace one decode step of a loaded model into a workload: what the NPU would launch, and what flows where."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from models import glue
from models.dataflow import NONE, Producers, Weights, storage_id, tensors_in, touched_bytes
from models.fusion import Launch
from models.fusion_rules import fuse
from models.hf.fused_view import fused_view, is_transformers
from models.kernels import Cost, KernelType, recording
from models.problems import Problem, RefusedError
from models.reads import FULL, Inside, Reads, own_result
from models.workload import Engine, Kernel, ModuleCall, Workload


class Traceable(Protocol):
    """What a trace needs of a `LoadedModel`."""

    module: nn.Module
    root: str
    layers: str
    deployment: Any

    def decode_once(self) -> torch.Tensor: ...


def trace(loaded: Traceable) -> Workload:
    """Run one decode step and record its kernels in program order.

    Functions marked with `models.kernels.kernel` are one kernel each, whatever they compute inside; aten ops between
    them become kernels of their own (`models.glue`), views and constants none. What `decode_once` computes before it
    calls the model (positions, caches) is input of the step, not part of it. Idle time that the deployment declares
    (`idle_us`) follows the step's last result.

    Args:
        loaded: a model on `meta` (full size) or on CPU.

    Returns:
        The workload. Equal for equal models: nothing depends on time, addresses or hashing.

    Raises:
        RefusedError: the model looks at values of tensors (`.item()`, `nonzero`), which `meta` does not have.
    """
    plain = is_transformers(loaded.module)
    tracer = _Tracer(loaded.module, f"{loaded.root}.{loaded.layers}." if loaded.root else f"{loaded.layers}.", plain)
    view = fused_view(loaded.module) if plain else nullcontext()
    if plain and not next(loaded.module.parameters()).is_meta:
        loaded.decode_once()  # what it prepares for later steps has to hold real numbers
    with torch.no_grad(), view:
        if plain:
            loaded.decode_once()  # its caches are made, and the view has seen every shape, before the step to record
        with tracer.hooks(), recording(tracer), tracer:
            output = loaded.decode_once()
    idle = float(getattr(loaded.deployment, "idle_us", 0.0))
    if idle > 0:
        tracer.idle(idle, output)
    kernels, calls = [launch.kernel for launch in tracer.launches], tracer.calls
    if plain:
        leaves = {fqn for fqn, module in loaded.module.named_modules() if next(module.children(), None) is None}
        kernels, calls = fuse(tracer.launches, calls, leaves)
    return Workload(
        kernels=tuple(kernels),
        calls={fqn: tuple(found) for fqn, found in calls.items()},
        layers=len(loaded.module.get_submodule(f"{loaded.root}.{loaded.layers}".strip("."))),  # type: ignore[arg-type]
        tokens=float(getattr(loaded.deployment, "tokens_per_step", 1.0)),
        weight_bytes=tracer.weights.bytes,
    )


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


class _Tracer(TorchDispatchMode):
    """Recorder of marked kernels, module calls and aten ops of one step."""

    def __init__(self, module: nn.Module, layer_prefix: str, folds: bool) -> None:
        """Args: folds: what is computed from weights alone, with every step, counts as the weight itself."""
        super().__init__()
        self.launches: list[Launch] = []
        self._folds = folds
        self.calls: dict[str, list[ModuleCall]] = {}
        self.weights = Weights(module)
        self.producers = Producers()
        self._module = module
        self._layer_prefix = layer_prefix
        self._events = 0
        self._stack: list[tuple[str, int, int | None]] = []
        self._streams = ["main"]
        self._cores = [0]
        self._inside: Inside | None = None

    # --- modules -----------------------------------------------------------------------------------------------

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Observe the enter and exit of every module; other hooks run first, so what we see is final."""
        with ExitStack() as stack:
            for fqn, module in self._module.named_modules():
                stack.callback(module.register_forward_pre_hook(self._entering(fqn), with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(self._exiting).remove)
            yield

    def _entering(self, fqn: str) -> Callable[..., None]:
        def enter(_module: nn.Module, args: tuple, kwargs: dict) -> None:
            self._stack.append((fqn, self._event(), self._producer(args) if args else self._producer(kwargs)))

        return enter

    def _exiting(self, _module: nn.Module, _args: tuple, output: Any) -> None:
        fqn, entered, input_kernel = self._stack.pop()
        call = ModuleCall(fqn, entered, self._event(), input_kernel, self._producer(output))
        self.calls.setdefault(fqn, []).append(call)

    def _event(self) -> int:
        self._events += 1
        return self._events - 1

    def _producer(self, value: Any) -> int | None:
        """The last kernel, in program order, that wrote the first tensor of a value."""
        first = next(tensors_in(value), None)
        return max(self.producers.of(first), default=None) if first is not None else None

    # --- what models.kernels sends ------------------------------------------------------------------------------

    def stream(self, label: str) -> AbstractContextManager[None]:
        return _pushed(self._streams, label)

    def cores(self, aic: int, aiv: int) -> AbstractContextManager[None]:
        return _pushed(self._cores, aic)

    def kernel(self, kind: KernelType, function: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        if self._inside is not None:  # part of a fused kernel
            return function(*args, **kwargs)
        cost = kind.cost(*args, **kwargs)
        reads = Reads(self.weights, self.producers)
        for name, value in _signature(function).bind(*args, **kwargs).arguments.items():
            for tensor in tensors_in(value):
                reads.add(tensor, cost.shares.get(name, FULL))
        inside = self._inside = Inside(len(self.launches), reads)
        try:
            result = own_result(function(*args, **kwargs), inside)
        finally:
            self._inside = None
        self._launch(cost.op or kind.op, kind.engine, cost, reads, list(tensors_in(result)))
        return result

    def _launch(
        self, op: str, engine: Engine, cost: Cost, reads: Reads, results: list[torch.Tensor], glue: bool = False
    ) -> None:
        index = len(self.launches)
        for tensor in results:
            if tensor not in self.producers:
                self.producers.create(tensor, frozenset((index,)))
        written = sum(touched_bytes(t) for t in results)
        other = float(reads.activation_bytes + written) if cost.other_bytes is None else cost.other_bytes
        module = self._stack[-1][0] if self._stack else ""
        rest = module.removeprefix(self._layer_prefix)
        number = rest.split(".", 1)[0] if rest != module else ""
        kernel = Kernel(
            index=index,
            op=op,
            module=module,
            engine=engine,
            stream=self._streams[-1],
            cores=self._cores[-1],
            flops=float(cost.flops),
            flops_dtype=cost.flops_dtype,
            weights=reads.weight_reads(),
            other_bytes=float(other),
            comm_bytes=float(cost.comm_bytes),
            comm_ranks=cost.comm_ranks,
            inputs=tuple(sorted(reads.inputs - {index})),
            layer=int(number) if number.isdigit() else None,
            fixed_us=cost.fixed_us,
        )
        path = tuple(entered for _, entered, _ in self._stack)
        self.launches.append(Launch(kernel, path, reads.activations, written, glue))

    def idle(self, microseconds: float, after: Any) -> None:
        """The die waits this long once `after` has been produced."""
        reads = Reads(self.weights, self.producers)
        for tensor in tensors_in(after):
            reads.inputs |= self.producers.of(tensor)
        self._launch("Idle", "idle", Cost(other_bytes=0.0, fixed_us=microseconds), reads, [])

    # --- aten ops -----------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        op = glue.describe(func)
        if op.composite:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        tensors = [*tensors_in(args), *tensors_in(kwargs)]
        written = [
            t
            for position, name in op.written
            for t in tensors_in(args[position] if position < len(args) else kwargs.get(name))
        ]
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if op.data_dependent and any(t.is_meta for t in tensors):
                raise RefusedError([_needs_values(func, self._stack[-1][0] if self._stack else "")]) from error
            raise
        known = {storage_id(t) for t in tensors}
        fresh = [t for t in tensors_in(result) if storage_id(t) not in known]
        if not (written or fresh):
            pass  # a view, whose users are the readers; or an op without results, such as a prefetch
        elif self._inside is not None:
            self._inside.saw(op, tensors, written, fresh)
        elif op.constant:
            for tensor in fresh if self._folds and op.name != "Arange" else ():  # positions differ from step to step
                self.weights.alias(tensor, [])
        elif self._folded(op, tensors, fresh):
            pass
        elif not self._stack:
            self._outside(tensors, written, fresh)
        else:
            self._glue(func, op, args, kwargs, tensors, written, fresh, result)
        return result

    def _folded(self, op: glue.Glue, tensors: list[torch.Tensor], fresh: list[torch.Tensor]) -> bool:
        """Whether a static graph computes this once: a weight in another type or shape is still that weight."""
        if op.written or op.lookup or op.engine != "vector" or not self._folds or not tensors:
            return False
        if any(self.producers.of(t) or not self.weights.knows(t) for t in tensors):
            return False
        for tensor in fresh:
            self.weights.alias(tensor, [name for t in tensors for name in self.weights.of(t)])
        return True

    def _outside(self, tensors: list[torch.Tensor], written: list[torch.Tensor], fresh: list[torch.Tensor]) -> None:
        """An op of the code around the model: no kernel of the step, but what flows in flows out."""
        flow = NONE.union(*(self.producers.of(t) for t in tensors))
        if flow:
            for tensor in fresh:
                self.producers.create(tensor, flow)
            for tensor in written:
                self.producers.write(tensor, flow)

    def _glue(
        self,
        func: Any,
        op: glue.Glue,
        args: tuple,
        kwargs: dict,
        tensors: list[torch.Tensor],
        written: list[torch.Tensor],
        fresh: list[torch.Tensor],
        result: Any,
    ) -> None:
        reads = Reads(self.weights, self.producers)
        ids = () if op.reads_written else tuple(id(t) for t in written)
        rows = sum(touched_bytes(t) for t in fresh)
        for i, tensor in enumerate(t for t in tensors if id(t) not in ids):
            if i == 0 and op.lookup:
                share = min(1.0, rows / max(1, touched_bytes(tensor)))
                reads.add(tensor, (share, share, share), rows)
            else:
                reads.add(tensor)
        index = len(self.launches)
        for tensor in written:
            self.producers.write(tensor, frozenset((index,)))
        cost = Cost(flops=glue.flops_of(func, args, kwargs, result), flops_dtype=glue.flops_dtype_of(tensors))
        self._launch(op.name, op.engine, cost, reads, [*written, *fresh], glue=True)


@contextmanager
def _pushed(stack: list[Any], value: Any) -> Iterator[None]:
    stack.append(value)
    try:
        yield
    finally:
        stack.pop()


def _needs_values(func: Any, module: str) -> Problem:
    return Problem(
        "error",
        "data-dependent-model",
        f"{module or 'the model'} looks at values of tensors ({func}), which full-size models on meta do not have",
        "Use a decode step without data-dependent control flow (padded experts, static caches).",
    )
