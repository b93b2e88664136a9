"""What a running model really did: every prefetch with the step, the identity of its weight and dependency; scopes.

Names prove nothing (two layers have weights of one shape, and a variable may be rebound), so a call is judged by the
memory it refers to. All tensors that are compared are kept alive until the end: freed memory would be handed out
again, and two different tensors would look like one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from models.loading import LoadedModel

# Appends (weight, dependency, max_size, offset) of every call to the given list while its block runs.
Observer = Callable[[list[Any]], AbstractContextManager[Any]]
# The bytes a tensor refers to, and how often they had been written to.
Identity = tuple[int, int, int, int | None]


@dataclass
class Passage:
    """One call of a watched module in a step.

    Attributes:
        fqn: the module.
        received, returned: identity of its first tensor argument / result.
        before_enter, before_exit: prefetch calls issued in this step when it was entered / left.
    """

    fqn: str
    received: Identity | None
    before_enter: int
    returned: Identity | None = None
    before_exit: int = 0


@dataclass(frozen=True)
class Call:
    """One observed prefetch call: identities of weight and dependency (None: no tensor), sizes in bytes."""

    weight: Identity
    dependency: Identity | None
    max_size: int
    offset: int


@dataclass(frozen=True)
class Event:
    """A module was entered or left, or a SuperKernel scope opened or closed.

    Attributes:
        kind: which.
        name: FQN, or label.
        options: of the scope.
    """

    kind: Literal["enter", "leave", "open", "close"]
    name: str
    options: str = ""


@dataclass
class Step:
    """One forward of the whole model.

    Attributes:
        decode: or prefill.
        calls: prefetch calls.
        passages: of the watched modules.
        events: scopes, and where they are planned, calls of all modules between them.
    """

    decode: bool
    calls: list[Call] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def of(self, fqn: str) -> list[Passage]:
        """The calls of one module in this step."""
        return [p for p in self.passages if p.fqn == fqn]


@dataclass
class Observation:
    """A whole run.

    Attributes:
        outputs: the model's outputs, prefill first.
        steps: what happened in each forward.
        stray: calls outside any forward of the whole model.
        parameters: FQN -> identity, of the running model.
        stray_scopes: scopes opened or closed outside any forward.
    """

    outputs: list[torch.Tensor]
    steps: list[Step]
    stray: list[Call]
    parameters: dict[str, Identity]
    stray_scopes: list[Event] = field(default_factory=list)


def observe_calls(
    loaded: LoadedModel,
    module: nn.Module,
    watched: Iterable[str],
    decode_steps: int = 3,
    observe: Observer | None = None,
    follow_all: bool = False,
) -> Observation:
    """Run a prefill and `decode_steps` decode steps and record every prefetch call and every scope.

    Args:
        loaded: knows how to drive the model.
        module: the model to run.
        watched: FQNs of the modules whose inputs and outputs may be dependencies, or whose calls are of interest.
        observe: the observer of the prefetch operator; `models.prefetch.observe` if None.
        follow_all: note the calls of all modules, to tell which are inside a scope.
    """
    from models.superkernel import observe as observe_scopes

    if observe is None:
        from models.prefetch import observe as default

        observe = default
    steps: list[Step] = []
    stray: list[Call] = []
    kept: list[Any] = []
    decoding = False

    def begin_decoding() -> None:
        nonlocal decoding
        decoding = True

    stray_scopes: list[Event] = []
    with (
        _hooks(module, set(watched), steps, kept, lambda: decoding) as running,
        _followed(module if follow_all else None, running),
        observe(_Stamped(running, stray)),
        observe_scopes(_ScopesOf(running, stray_scopes)),
    ):
        outputs = loaded.run(module, decode_steps=decode_steps, before_decode=begin_decoding)
    parameters = {name: identity(p) for name, p in module.named_parameters(remove_duplicate=False)}
    return Observation([o.detach().clone() for o in outputs], steps, stray, parameters, stray_scopes)


def identity(tensor: torch.Tensor) -> Identity:
    """Storage address, first byte, number of bytes, version. Views that cover the same bytes are the same."""
    try:
        version: int | None = tensor._version
    except RuntimeError:  # tensors made in inference mode have no version counter
        version = None
    storage = tensor.untyped_storage()
    item = tensor.element_size()
    return (storage.data_ptr(), int(tensor.storage_offset()) * item, tensor.numel() * item, version)


def same_bytes(a: Identity | None, b: Identity | None) -> bool:
    """The same memory, whatever was written to it in between."""
    return a is not None and b is not None and a[:3] == b[:3]


def same_value(a: Identity | None, b: Identity | None) -> bool:
    """The same memory with nothing written to it in between."""
    return same_bytes(a, b) and (a[3] == b[3] or None in (a[3], b[3]))  # type: ignore[index]


def first_tensor(values: Any) -> torch.Tensor | None:
    """The first tensor in nested tuples, lists and mappings."""
    if isinstance(values, torch.Tensor):
        return values
    if isinstance(values, Mapping):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return None
    return next((t for t in map(first_tensor, values) if t is not None), None)


class _Stamped(list[Any]):
    """Notes identities at the moment of the call: a later in-place change of a dependency must not count."""

    def __init__(self, running: list[Step], stray: list[Call]) -> None:
        super().__init__()
        self._running = running
        self._stray = stray

    def append(self, call: Any) -> None:
        super().append(call)  # keeps the tensors alive
        weight, dependency, max_size, offset = call
        found = identity(dependency) if isinstance(dependency, torch.Tensor) else None
        place = self._running[-1].calls if self._running else self._stray
        place.append(Call(identity(weight), found, max_size, offset))


class _ScopesOf(list[Any]):
    """Notes scopes among the calls of the step that is running."""

    def __init__(self, running: list[Step], stray: list[Event]) -> None:
        super().__init__()
        self._running = running
        self._stray = stray

    def append(self, event: Any) -> None:
        place = self._running[-1].events if self._running else self._stray
        place.append(Event("open" if event.opened else "close", event.label, event.options))


@contextmanager
def _followed(module: nn.Module | None, running: list[Step]) -> Iterator[None]:
    """Note entering and leaving of every module: inside of a scope that a hook on the module opens and closes."""
    handles = []

    def follow(fqn: str, child: nn.Module) -> None:
        def enter(_module: nn.Module, _args: Any) -> None:
            if running:
                running[-1].events.append(Event("enter", fqn))

        def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
            if running:
                running[-1].events.append(Event("leave", fqn))

        handles.append(child.register_forward_pre_hook(enter))
        handles.append(child.register_forward_hook(leave, prepend=True))

    try:
        for fqn, child in module.named_modules() if module is not None else ():
            follow(fqn, child)
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _hooks(
    module: nn.Module, watched: set[str], steps: list[Step], kept: list[Any], decoding: Callable[[], bool]
) -> Iterator[list[Step]]:
    """Follow the forwards of the whole model and the calls of the watched modules; yields the step that runs now."""
    handles = []
    running: list[Step] = []
    open_passages: dict[str, list[Passage]] = {}

    def begin(_module: nn.Module, _args: Any) -> None:
        steps.append(Step(decoding()))
        running.append(steps[-1])

    def end(_module: nn.Module, _args: Any, _output: Any) -> None:
        running.clear()

    def follow(fqn: str, child: nn.Module) -> None:
        def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
            if not steps:
                return
            received = first_tensor((args, kwargs))
            kept.append(received)
            passage = Passage(fqn, None if received is None else identity(received), len(steps[-1].calls))
            open_passages.setdefault(fqn, []).append(passage)
            steps[-1].passages.append(passage)

        def leave(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
            if not open_passages.get(fqn):
                return
            passage = open_passages[fqn].pop()
            returned = first_tensor(output)
            kept.append(returned)
            passage.returned = None if returned is None else identity(returned)
            passage.before_exit = len(steps[-1].calls)

        handles.append(child.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(child.register_forward_hook(leave, with_kwargs=True))

    try:
        handles.append(module.register_forward_pre_hook(begin))
        handles.append(module.register_forward_hook(end))
        for fqn, child in module.named_modules(remove_duplicate=False):
            if fqn in watched:
                follow(fqn, child)
        yield running
    finally:
        for handle in handles:
            handle.remove()
