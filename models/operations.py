"""Record one decode step op by op: which weights each op computes with, what flows into it, which module runs it.

A trace (`models.trace`) tells what the NPU would launch, with fused kernels. Roles need the plain arithmetic below:
what a matrix product multiplies, and which op touches the carried state (key and value caches, recurrent states).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from models import glue
from models.dataflow import NONE, Producers, Weights, storage_id, tensors_in
from models.problems import Problem, RefusedError

Outside = tuple[int, int, tuple[int, ...]]
# Their first argument is added, not multiplied.
_ADDING = frozenset(("addmm", "baddbmm", "addmv"))
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "linear", "matmul", "einsum"))
# A table of this many dimensions is a stack of weights, of which some are picked; of two, an embedding.
_STACK = 3


class Runnable(Protocol):
    """What recording needs of a `LoadedModel`; one without `decode_once` decodes by `run`."""

    module: nn.Module
    root: str
    layers: str


@dataclass(frozen=True)
class Operation:
    """One op of a decode step.

    Attributes:
        index: position in the step.
        name: aten name without variants, e.g. `mm`, `topk`.
        path: FQNs of the modules that are running, outermost first.
        layer: decoder layer, None outside the layers.
        weights: parameters whose values are an operand: themselves, views, casts, picked out of a stack.
        operands: for each tensor that is no weight and no constant, the ops whose results it holds.
        outside: what it touches that is neither made in the step, nor an input, weight, buffer or constant: state.
        writes: whether it writes in place.
        partial: whether it takes only a part of one of the weights.
    """

    index: int
    name: str
    path: tuple[str, ...]
    layer: int | None
    weights: frozenset[str]
    operands: tuple[frozenset[int], ...]
    outside: tuple[Outside, ...]
    writes: bool
    partial: bool

    @property
    def inputs(self) -> frozenset[int]:
        return NONE.union(*self.operands)

    @property
    def is_product(self) -> bool:
        """A matrix product, of whatever."""
        return self.name in _PRODUCTS or "grouped_mm" in self.name or "dot_product_attention" in self.name


@dataclass(frozen=True)
class OperationCall:
    """One call of a module.

    Attributes:
        path: FQNs of the running modules, this one last.
        layer: decoder layer, None outside.
        first, last: the ops in it are those with first <= index < last.
        inputs, outputs: ops whose results its first tensor input and output hold.
    """

    path: tuple[str, ...]
    layer: int | None
    first: int
    last: int
    inputs: frozenset[int]
    outputs: frozenset[int]

    @property
    def fqn(self) -> str:
        return self.path[-1]


@dataclass
class Step:
    """One decode step: ops and module calls (in order of return)."""

    operations: list[Operation] = field(default_factory=list)
    calls: list[OperationCall] = field(default_factory=list)


def record(loaded: Runnable) -> Step:
    """Run one decode step and record it.

    Args:
        loaded: full size on `meta`, or tiny on CPU.

    Raises:
        RefusedError: the model looks at values of tensors, which `meta` does not have.
    """
    recorder = _Recorder(loaded)
    with torch.no_grad(), recorder.hooks(), recorder:
        decode_once = getattr(loaded, "decode_in_short", None) or getattr(loaded, "decode_once", None)
        if decode_once is not None:
            decode_once()
        else:
            loaded.run(decode_steps=1)  # type: ignore[attr-defined]
    return recorder.step


class _Recorder(TorchDispatchMode):
    def __init__(self, loaded: Runnable) -> None:
        super().__init__()
        self._module = loaded.module
        self._weights = Weights(loaded.module)
        self._numbers = {n: p.numel() for n, p in loaded.module.named_parameters()}
        prefix = f"{loaded.root}.{loaded.layers}" if loaded.root else loaded.layers
        self._layer_of = {f"{prefix}.{i}": i for i in range(len(loaded.module.get_submodule(prefix)))}  # type: ignore[arg-type]
        # Tensors that are neither parameters nor buffers; a model that keeps its state so puts new ones in their place.
        attributes = [v for m in loaded.module.modules() for v in vars(m).values() if isinstance(v, torch.Tensor)]
        self._kept = [*loaded.module.buffers(), *attributes]  # alive: what is freed could be mistaken for another
        self._constants = {storage_id(t) for t in self._kept}
        self._forget()

    def _forget(self) -> None:
        """Only the last call of the whole model counts: what a prefill left behind is outside of the step."""
        self.step = Step()
        self._producers = Producers()
        self._derived: dict[int, frozenset[str]] = {}  # storages made of weights and constants alone
        self._made: set[int] = set()
        self._entered: dict[str, int] = {}
        self._alive: list[torch.Tensor] = []
        self._stack: list[tuple[str, int | None, int, frozenset[int]]] = []

    @contextmanager
    def hooks(self) -> Iterator[None]:
        with ExitStack() as stack:
            for fqn, module in self._module.named_modules():
                stack.callback(module.register_forward_pre_hook(self._entering(fqn), with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(self._leaving).remove)
            yield

    def _entering(self, fqn: str) -> Callable[..., None]:
        def enter(_module: nn.Module, args: tuple, kwargs: dict) -> None:
            if not fqn:
                self._forget()
                # What the model is given directly is input; caches come in tuples and objects.
                self._made |= {storage_id(v) for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)}
            layer = self._layer_of.get(fqn, self._stack[-1][1] if self._stack else None)
            if fqn in self._layer_of:
                self._entered[fqn] = self._entered.get(fqn, 0) + 1
                layer = layer if self._entered[fqn] == 1 else None  # of a loop over layers the first round is enough
            first = next(tensors_in((args, kwargs)), None)
            inputs = self._producers.of(first) if first is not None else NONE
            self._stack.append((fqn, layer, len(self.step.operations), inputs))

        return enter

    def _leaving(self, _module: nn.Module, _args: tuple, output: Any) -> None:
        path = tuple(entry[0] for entry in self._stack)
        _, layer, first, inputs = self._stack.pop()
        value = next(tensors_in(output), None)
        outputs = self._producers.of(value) if value is not None else NONE
        self.step.calls.append(OperationCall(path, layer, first, len(self.step.operations), inputs, outputs))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        op = glue.describe(func)
        if op.composite:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        tensors = [*tensors_in(args), *tensors_in(kwargs)]
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if op.data_dependent and any(t.is_meta for t in tensors):
                raise RefusedError([_needs_values(func, self._stack[-1][0] if self._stack else "")]) from error
            raise
        written = [
            t
            for position, name in op.written
            for t in tensors_in(args[position] if position < len(args) else kwargs.get(name))
        ]
        known = {storage_id(t) for t in tensors}
        fresh = [t for t in tensors_in(result) if storage_id(t) not in known]
        if not self._stack:
            return result
        stem = func._schema.name.split("::")[-1]
        if op.constant or stem == "lift_fresh":
            self._make_constant(fresh or list(tensors_in(result)))
        elif written or fresh:
            read = tensors if op.reads_written else [t for t in tensors if not any(t is w for w in written)]
            self._saw(stem.rstrip("_") or stem, op, read, written, fresh)
        return result

    def _make_constant(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            self._alive.append(tensor)
            self._derived[storage_id(tensor)] = frozenset()

    def _saw(
        self, name: str, op: glue.Glue, read: list[torch.Tensor], written: list[torch.Tensor], fresh: list[torch.Tensor]
    ) -> None:
        weights: frozenset[str] = frozenset()
        operands: list[frozenset[int]] = []
        outside: list[Outside] = []
        picked = op.lookup and bool(read) and read[0].dim() >= _STACK and self._weights_in(read[0])
        for i, tensor in enumerate([*read, *(t for t in written if not any(t is r for r in read))]):
            own = self._weights_in(tensor)
            if own is not None:
                factor = i == 0 if op.lookup else i > 0 or name not in _ADDING
                weights |= own if factor else frozenset()
                continue
            operands.append(self._producers.of(tensor))
            key = storage_id(tensor)
            if key not in self._made:
                self._alive.append(tensor)
                if tensor.numel() > 1:
                    outside.append((key, int(tensor.storage_offset()), tuple(tensor.shape)))
        constant = not operands and not outside
        derived = weights if constant or picked else None
        index = len(self.step.operations)
        for tensor in fresh:
            self._alive.append(tensor)
            self._made.add(storage_id(tensor))
            self._producers.create(tensor, frozenset((index,)))
            if derived is not None:
                self._derived[storage_id(tensor)] = derived
        for tensor in written:
            key = storage_id(tensor)
            if not constant and self._derived.pop(key, None) is not None:
                self._made.add(key)  # what was constant holds results now
            if not self._weights.of(tensor):
                self._producers.write(tensor, frozenset((index,)))
        partial = any(t.numel() < self._numbers[n] for t in read for n in self._weights.of(t))
        path = tuple(entry[0] for entry in self._stack)
        layer = self._stack[-1][1]
        self.step.operations.append(
            Operation(index, name, path, layer, weights, tuple(operands), tuple(outside), bool(written), partial)
        )

    def _weights_in(self, tensor: torch.Tensor) -> frozenset[str] | None:
        """Weights behind a tensor of weights and constants alone; None if activations or state are in it."""
        key = storage_id(tensor)
        if key in self._derived:
            return self._derived[key]
        if names := self._weights.of(tensor):
            return frozenset(names)
        return frozenset() if key in self._constants else None


def _needs_values(func: Any, module: str) -> Problem:
    return Problem(
        "error",
        "data-dependent-model",
        f"{module or 'the model'} looks at values of tensors ({func}), which full-size models on meta do not have",
        "Use a decode step without data-dependent control flow (padded experts, static caches).",
    )
