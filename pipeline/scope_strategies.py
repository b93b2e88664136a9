"""Which modules a strategy covers, found by what they launch, without names where that is possible."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from models.paths import Names
from models.workload import Kernel
from pipeline.scope_spans import Calls

_ATTENTION_OP = re.compile(r"attention", re.IGNORECASE)
_MOE_OP = re.compile(r"^(GroupedMatmul|Moe)")
_ATTENTION_CLASS = re.compile(r"attention|attn", re.IGNORECASE)
_MOE_CLASS = re.compile(r"moe|expert", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """A scope before it has options.

    Attributes:
        name: of the strategy or the custom scope.
        label: what the compiler calls it.
        first, last: FQNs.
        layer: index, None for a scope over several layers.
    """

    name: str
    label: str
    first: str
    last: str
    layer: int | None


def attention(names: Names, calls: Calls) -> list[Part]:
    """One scope per attention module of each layer."""
    return _per_layer(names, calls, "attention", _ATTENTION_OP, _ATTENTION_CLASS)


def moe(names: Names, calls: Calls) -> list[Part]:
    """One scope per mixture of experts of each layer."""
    return _per_layer(names, calls, "moe", _MOE_OP, _MOE_CLASS)


def decoder_layers(names: Names, calls: Calls) -> list[Part]:
    """One scope over the loop of the decoder layers."""
    called = [layer for layer in _layers(names) if calls.one(layer) is not None]
    return [Part("decoder_layers", "decoder_layers", called[0], called[-1], None)] if called else []


def chains(names: Names, calls: Calls) -> list[Part]:
    """The longest runs of modules of one stream in each layer, as far as a forward can hold them."""
    found = []
    for index, layer in enumerate(_layers(names)):
        pieces = list(_runs(calls, layer))
        for number, (first, last) in enumerate(pieces):
            suffix = f"_{number}" if len(pieces) > 1 else ""
            found.append(Part(f"chain{suffix}", f"chain_{index}{suffix}", first, last, index))
    return found


STRATEGIES: dict[str, Callable[[Names, Calls], list[Part]]] = {
    "attention": attention,
    "moe": moe,
    "decoder_layers": decoder_layers,
    "chains": chains,
}


def has_experts(calls: Calls) -> bool:
    """Whether the step is one of a mixture of experts."""
    return any(_MOE_OP.match(kernel.op) for kernel in calls.workload.kernels)


def _layers(names: Names) -> list[str]:
    return [f"{names.layer_list}.{i}" for i in range(names.layer_count)]


def _per_layer(names: Names, calls: Calls, name: str, op: re.Pattern[str], cls: re.Pattern[str]) -> list[Part]:
    found = []
    for index, layer in enumerate(_layers(names)):
        modules = list(_outermost(names, calls, layer, op, cls))
        for number, module in enumerate(modules):
            suffix = f"_{number}" if len(modules) > 1 else ""
            found.append(Part(f"{name}{suffix}", f"{name}_{index}{suffix}", module, module, index))
    return found


def _outermost(names: Names, calls: Calls, layer: str, op: re.Pattern[str], cls: re.Pattern[str]) -> Iterable[str]:
    """Modules that the layer calls and that launch such kernels; by their class where no kernel tells."""
    children = calls.children(layer)
    launch = [m for m in children if any(op.search(k.op) for k in _of(calls, m))]
    return launch or [m for m in children if cls.search(type(names.modules[m]).__name__) and len(calls.kernels(m)) > 1]


def _of(calls: Calls, module: str) -> Sequence[Kernel]:
    found = calls.kernels(module)
    return calls.workload.kernels[found.start : found.stop]


def _runs(calls: Calls, module: str) -> Iterable[tuple[str, str]]:
    """(first, last) of the longest runs of children on one stream; a child on several streams is looked into."""
    run: list[str] = []
    stream = ""
    for child in calls.children(module):
        streams = {kernel.stream for kernel in _of(calls, child)}
        if not streams:
            continue
        # A kernel of another stream that the parent launches between two children ends the run, too.
        if run and (streams != {stream} or not _single(calls, run[0], child)):
            yield run[0], run[-1]
            run = []
        if len(streams) > 1:
            yield from _runs(calls, child)
            continue
        run.append(child)
        (stream,) = streams
    if run:
        yield run[0], run[-1]


def _single(calls: Calls, first: str, last: str) -> bool:
    span = calls.span(first, last)
    return span is not None and len({kernel.stream for kernel in calls.members(span)}) == 1
