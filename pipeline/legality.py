"""Which weights may be prefetched, and after what: the rules of the data flow of one decode step.

A dependency is legal iff the kernel that produces it is a data-flow ancestor of the kernel that reads the target, in
the same step, and its call comes first. What makes a legal window good or bad is another question (`pipeline.advice`).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from models.paths import Names
from models.workload import Kernel, ModuleCall, Workload
from transforms.plan import Port

# Kinds of kernels that are windows, never targets, by the field's names of their operators.
_KINDS = (
    ("norm", r"norm"),
    ("RoPE", r"rope|rotary"),
    ("cast or quantisation", r"^(cast|to|quant|dequant|dynamicquant|ascendquant)$"),
    ("reshape or copy", r"^(reshape|transpose|concat\w*|cat|slice|stridedslice|split|copy|clone|permute|pad)$"),
    ("activation", r"swiglu|silu|gelu|^relu|sigmoid|softmax"),
    ("topk", r"topk|gating"),
    ("dispatch", r"dispatch"),
    ("combine", r"combine"),
    ("embedding lookup", r"^(gather\w*|embedding|indexselect)$"),
    ("communication", r"^(all|reduce|hcom)\w*(gather|scatter|reduce|alltoall)\w*$|^(send|recv)"),
)
_CLASSES = (
    ("norm", r"norm"),
    ("RoPE", r"rope|rotary"),
    ("activation", r"silu|gelu|relu|swiglu|activation|sigmoid"),
    ("topk", r"topk"),
    ("dispatch", r"dispatch"),
    ("combine", r"combine"),
)


@dataclass(frozen=True)
class Illegal:
    """Why a target is refused."""

    code: str
    message: str
    fix: str = ""


@dataclass(frozen=True)
class Placement:
    """A legal prefetch: where it is issued and what reads the weight.

    Attributes:
        event: number of the dependency's enter or exit event: the issue order.
        producer: kernel whose end releases the copy.
        reader: the first MatMul that reads the weight.
    """

    event: int
    producer: int
    reader: int


class Flow:
    """One decode step, indexed for questions about order and data flow."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.readers: dict[str, list[int]] = {}
        for kernel in workload.kernels:
            for read in kernel.weights:
                self.readers.setdefault(read.weight, []).append(kernel.index)

    def flows(self, producer: int, kernel: int) -> bool:
        """Whether what `producer` writes reaches `kernel`."""
        return self.workload.is_ancestor(producer, kernel)

    def reader(self, weight: str) -> int | None:
        """The first kernel that a prefetch of this weight is for: a MatMul, not the lookup in a tied embedding."""
        readers = self.readers.get(weight, [])
        matmuls = (k for k in readers if _kind_of_op(self.workload.kernels[k].op) is None)
        return next(matmuls, readers[0] if readers else None)

    def call(self, fqn: str) -> ModuleCall | None:
        """The first call of a module in this step."""
        calls = self.workload.calls.get(fqn)
        return calls[0] if calls else None

    def event(self, call: ModuleCall, port: Port) -> int:
        return call.exit if port == "output" else call.enter

    def producer(self, call: ModuleCall, port: Port) -> int | None:
        return call.output_kernel if port == "output" else call.input_kernel

    def has_passed(self, kernel: Kernel, event: int) -> bool:
        """Whether a kernel has been launched before an event, as far as the module calls tell."""
        calls = self.workload.calls.get(kernel.module, ())
        if calls and all(c.exit <= event for c in calls):
            return True
        # The last output before the event is a kernel at or behind this one.
        i = _bisect(self._exits, event)
        return i > 0 and self._exits[i - 1][1] >= kernel.index

    @cached_property
    def _exits(self) -> list[tuple[int, int]]:
        """(exit event, largest output kernel up to it), sorted."""
        pairs = sorted((c.exit, c.output_kernel) for c in self._all_calls() if c.output_kernel is not None)
        result: list[tuple[int, int]] = []
        for exit_event, kernel in pairs:
            result.append((exit_event, max(kernel, result[-1][1] if result else kernel)))
        return result

    def _all_calls(self) -> Iterator[ModuleCall]:
        for calls in self.workload.calls.values():
            yield from calls

    def legal_before(self, reader: int) -> list[tuple[int, str, Port]]:
        """Every legal dependency of a kernel as (producer, module, port), nearest first.

        Of several modules with one producer the innermost comes first: it is the one that the text of the model calls.
        """
        found: list[tuple[int, int, str, Port]] = []
        target = self.workload.kernels[reader]
        for fqn, calls in self.workload.calls.items():
            if len(calls) != 1 or not fqn:
                continue
            call = calls[0]
            producer = call.output_kernel
            if producer is not None and self.flows(producer, reader) and not self.has_passed(target, call.exit):
                found.append((producer, call.exit, fqn, "output"))
        # The innermost module exits first.
        found.sort(key=lambda f: (-f[0], f[1]))
        return [(producer, fqn, port) for producer, _, fqn, port in found]


def check_target(names: Names, flow: Flow, weight: str, i: int | None = None) -> Illegal | int:
    """Whether a parameter may be prefetched.

    Args:
        names: the model.
        flow: the step.
        weight: FQN of the parameter (the first one of a tied weight).
        i: layer index, to word the messages like the recipe.

    Returns:
        The kernel that the prefetch is for, or why it may not.
    """
    parameter = names.parameters[weight]
    owner = names.modules[weight.rpartition(".")[0]]
    kernels = [flow.workload.kernels[k] for k in flow.readers.get(weight, ())]
    label = names.relative(weight, i)
    kinds = [_kind_of_op(k.op) for k in kernels]
    kind = _kind(type(owner).__name__, _CLASSES) or next((k for k in kinds if k), None)
    reader = flow.reader(weight)
    if reader is not None and not all(kinds) and parameter.dim() >= 2:
        return reader
    advice = "Prefetch the weight of a MatMul (linear layers, experts); such kernels are good dependencies instead."
    if kind is not None:
        read = f", read by {kernels[0].op}," if kernels else ""
        return Illegal("not-a-target", f"`{label}`{read} is the weight of a {kind}, not of a MatMul", advice)
    if parameter.dim() < 2:
        return Illegal(
            "not-a-target", f"`{label}` is a vector of {parameter.numel()} numbers, not a MatMul weight", advice
        )
    return Illegal(
        "never-read", f"no kernel of the decode step reads `{label}`", "Choose a weight that this model uses in decode."
    )


def kind_of_module(name: str, module: nn.Module) -> str | None:
    """`norm`, `RoPE`, `activation`, ... if the class or the name says that it is one."""
    return _kind(type(module).__name__, _CLASSES) or _kind(name.rpartition(".")[2], _CLASSES)


def check_dependency(names: Names, flow: Flow, fqn: str, port: Port, reader: int, i: int | None) -> Illegal | Placement:
    """Whether a copy for the kernel `reader` may wait for this port of a module.

    Args:
        names: the model.
        flow: the step.
        fqn: the dependency.
        port: its output or input.
        reader: the kernel that the prefetch is for.
        i: layer index, to word the messages like the recipe.
    """
    label = f"{names.relative(fqn, i)}{':input' if port == 'input' else ''}"
    if fqn not in names.modules:
        owner = fqn.rpartition(".")[0]
        return Illegal(
            "not-a-module",
            f"dependency `{label}` is a parameter: nothing produces it in a step",
            f"Name a module that is called, e.g. `{names.relative(owner, i)}`.",
        )
    calls = flow.workload.calls.get(fqn, ())
    if not calls:
        return _never_called(names, flow, fqn, reader, i)
    if len(calls) > 1:
        return Illegal(
            "called-repeatedly",
            f"dependency `{label}` is called {len(calls)} times in a step: the copy would be issued as often",
            _nearest(names, flow, reader, i),
        )
    call, target = calls[0], flow.workload.kernels[reader]
    event, producer = flow.event(call, port), flow.producer(call, port)
    if producer is None:
        return Illegal(
            "dependency-is-input",
            f"dependency `{label}` is an input of the step or a weight: it orders nothing",
            _nearest(names, flow, reader, i),
        )
    if flow.flows(producer, reader) and not flow.has_passed(target, event):
        return Placement(event, producer, reader)
    reads = f"{target.op} of `{names.relative(target.module, i)}`"
    if producer == reader or flow.flows(reader, producer) or flow.flows(producer, reader):
        what = "is produced by the target's own kernel" if producer == reader else "comes after its target is read"
        return Illegal(
            "dependency-after-target",
            f"dependency `{label}` {what} ({reads}): the copy would be too late",
            _nearest(names, flow, reader, i),
        )
    made = flow.workload.kernels[producer]
    return Illegal(
        "dependency-in-another-branch",
        f"dependency `{label}` ({made.op}, stream {made.stream}) does not flow into its target ({reads}, stream "
        f"{target.stream}): they are different branches, and nothing orders them",
        _nearest(names, flow, reader, i),
    )


def _never_called(names: Names, flow: Flow, fqn: str, reader: int, i: int | None) -> Illegal:
    label = names.relative(fqn, i)
    own = [p for p in names.parameters if p.startswith(f"{fqn}.")]
    users = sorted({k for p in own for k in flow.readers.get(names.canonical[p], ())})
    why = ""
    if users:
        kernel = flow.workload.kernels[users[0]]
        why = f": its weight goes into {kernel.op}, launched by `{names.relative(kernel.module, i)}`"
    near = [f"`{names.relative(n, i)}`" for n in _called_nearby(flow, fqn)]
    legal = _nearest(names, flow, reader, i)
    fix = f"Called nearby: {', '.join(near)}. {legal}" if near else legal
    return Illegal("never-called", f"dependency `{label}` is a module, but it is never called{why}", fix)


def _called_nearby(flow: Flow, fqn: str, count: int = 4) -> Iterable[str]:
    """Called modules beside or below the module, in call order, after the nearest enclosing one."""
    parent = fqn.rpartition(".")[0]
    while parent and parent not in flow.workload.calls:
        parent = parent.rpartition(".")[0]
    inside = [n for n in flow.workload.calls if n.startswith(f"{parent}.") and n.count(".") == parent.count(".") + 1]
    inside.sort(key=lambda n: flow.workload.calls[n][0].enter)
    return [*([parent] if parent else []), *inside][: count + 1]


def _nearest(names: Names, flow: Flow, reader: int, i: int | None) -> str:
    legal = flow.legal_before(reader)
    if not legal:
        return "No module's output can be its dependency: it is read before anything else has run."
    _, fqn, port = legal[0]
    return f"The nearest legal dependency is `{names.relative(fqn, i)}{'' if port == 'output' else ':input'}`."


def _kind_of_op(op: str) -> str | None:
    """What a kernel is if it is no MatMul. Fused ones (MatMul and activation, MatMul and collective) are MatMuls."""
    return None if re.search(r"matmul|prolog", op, re.IGNORECASE) else _kind(op, _KINDS)


def _kind(text: str, kinds: Iterable[tuple[str, str]]) -> str | None:
    return next((kind for kind, pattern in kinds if re.search(pattern, text, re.IGNORECASE)), None)


def _bisect(pairs: list[tuple[int, int]], event: int) -> int:
    """Number of pairs whose first item is at most `event`."""
    low, high = 0, len(pairs)
    while low < high:
        middle = (low + high) // 2
        if pairs[middle][0] <= event:
            low = middle + 1
        else:
            high = middle
    return low
