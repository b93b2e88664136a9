"""Which modules a strategy covers, found by what they launch, without names where that is possible."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from models.paths import Names
from models.workload import Kernel
from pipeline.scope_spans import Calls

_ATTENTION_OP = re.compile(r"attention", re.IGNORECASE)
_MOE_OP = re.compile(r"^(GroupedMatmul|Moe)")


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
    return _per_layer(names, calls, "attention", _ATTENTION_OP, "mixer", "attention.in")


def moe(names: Names, calls: Calls) -> list[Part]:
    """One scope per mixture of experts of each layer."""
    return _per_layer(names, calls, "moe", _MOE_OP, "feed_forward", "moe.experts.up")


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


def _per_layer(names: Names, calls: Calls, name: str, op: re.Pattern[str], role: str, holding: str) -> list[Part]:
    """The modules that a layer calls and that launch such kernels; by their roles where no kernel of the step tells."""
    layers = list(enumerate(_layers(names)))
    by_layer = [
        [m for m in calls.children(layer) if any(op.search(k.op) for k in _of(calls, m))] for _, layer in layers
    ]
    if not any(by_layer):
        by_layer = [list(_with_role(names, calls, layer, index, role, holding)) for index, layer in layers]
    found = []
    for index, modules in enumerate(by_layer):
        for number, module in enumerate(modules):
            suffix = f"_{number}" if len(modules) > 1 else ""
            found.append(Part(f"{name}{suffix}", f"{name}_{index}{suffix}", module, module, index))
    return found


def _with_role(names: Names, calls: Calls, layer: str, index: int, role: str, holding: str) -> Iterable[str]:
    """Modules with a role that hold weights with another one, as far as the layer's forward calls them."""
    weights = names.roles.of(index, holding)
    for module in names.roles.of(index, role):
        child = next((c for c in calls.children(layer) if f"{module}.".startswith(f"{c}.")), None)
        if child is not None and len(calls.kernels(child)) > 1 and any(w.startswith(f"{module}.") for w in weights):
            yield child


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
