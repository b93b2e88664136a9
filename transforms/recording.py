"""What a prefill and a decode step of a tiny model did: every module call, with the place in the source that made it.

Call sites are not searched in the text. While a module is being called, the interpreter knows the exact span of the
call expression that it is executing (`code.co_positions`) and, in `f_locals`, the instance that makes the call; so
loops, aliases, ModuleList indices, helper methods and decorators need no code at all.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch import nn

from models.problems import Problem, RefusedError
from transforms.source_file import SourceFile

PHASE_NAMES = {"is_prefill": False, "is_decode": True}  # name -> its value in decode


@dataclass(frozen=True)
class Site:
    """A call expression in the modeling file.

    Attributes:
        function: qualified name, e.g. `Qwen3DecoderLayer.forward`.
        line: the first line, for messages.
        end_line, end_column: where its closing parenthesis ends, which identifies it; characters, not bytes.
    """

    function: str
    line: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class Tensor:
    """A tensor that went in or out of a call: the same `key` and `version` means the same object, not written since.

    Attributes:
        position: index or keyword of an input, index in a tuple output, None for the output itself.
        key: identity of the object.
        version: in-place version; unique where the tensor has none, so that it never equals another.
        shape: its shape.
    """

    position: int | str | None
    key: int
    version: object
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Argument:
    """What an argument tells about the phase.

    Attributes:
        flag: its value, if it is a bool.
        flags: its own phase attributes, e.g. `{"is_prefill": True}` of a forward metadata object.
        shape: its shape, if it is a tensor.
        floating: whether that tensor is of floating point.
    """

    flag: bool | None = None
    flags: tuple[tuple[str, bool], ...] = ()
    shape: tuple[int, ...] | None = None
    floating: bool = False


@dataclass
class Call:
    """One call of a module.

    Attributes:
        fqn: the module.
        site: the call expression; None if another file makes the call.
        owner: FQN of the module whose method makes the call, None likewise.
        parent: the call of the module that makes the call.
        enter, exit: event numbers; all enters and exits of a step are numbered in one sequence.
        inputs, outputs: its tensors.
    """

    fqn: str
    site: Site | None
    owner: str | None
    parent: "Call | None"
    enter: int
    exit: int = -1
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


@dataclass
class Step:
    """The calls of one prefill or decode step.

    Attributes:
        calls: in order.
        arguments: function -> for each time it ran, its parameters' values.
    """

    calls: list[Call] = field(default_factory=list)
    arguments: dict[str, list[dict[str, Argument]]] = field(default_factory=dict)

    @cached_property
    def by_module(self) -> dict[str, list[Call]]:
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.fqn, []).append(call)
        return found

    @cached_property
    def by_site(self) -> dict[tuple[Site | None, str | None], list[Call]]:
        """(site, owner) -> calls: more than one means that the owner runs the expression in a loop."""
        found: dict[tuple[Site | None, str | None], list[Call]] = {}
        for call in self.calls:
            found.setdefault((call.site, call.owner), []).append(call)
        return found


@dataclass
class Recording:
    """A recorded run and the parsed source; reusable for every plan of the same model.

    Attributes:
        module: the recorded model.
        python_module: the Python module whose file is rewritten.
        root, layers: owner and name of the decoder layer list.
        tokens: tokens per sequence in one decode step, 1 + speculative ones.
        source: the file.
        prefill, decode: what ran.
    """

    module: nn.Module
    python_module: ModuleType
    root: str
    layers: str
    tokens: int
    source: SourceFile
    prefill: Step
    decode: Step

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        return dict(self.module.named_modules())

    @cached_property
    def parameters(self) -> set[str]:
        return {name for name, _ in self.module.named_parameters(remove_duplicate=False)}

    def class_of(self, fqn: str) -> type:
        return type(self.modules[fqn])

    def in_file(self, cls: type) -> bool:
        return cls.__module__ == self.python_module.__name__


def record(loaded: Any) -> Recording:
    """Run a prefill and one decode step and note every module call.

    Args:
        loaded: a tiny `LoadedModel`, or anything with its `module`, `python_module`, `root`, `layers` and `run`.

    Raises:
        RefusedError: the interpreter has no call positions, or the file was edited after it was imported.
    """
    source = SourceFile.read(Path(inspect.getfile(loaded.python_module)))
    _refuse_without_positions(loaded.python_module, source)
    hooks = _Hooks(loaded.module, inspect.getfile(loaded.python_module), source)
    with hooks, torch.no_grad():
        loaded.run(decode_steps=1, before_decode=hooks.start_decode)
    return Recording(
        loaded.module,
        loaded.python_module,
        loaded.root,
        loaded.layers,
        1 + getattr(getattr(loaded, "deployment", None), "next_n", 0),
        source,
        hooks.steps[0],
        hooks.steps[1],
    )


def first_tensor(values: Any) -> torch.Tensor | None:
    """The tensor a port means: the value itself, or the first tensor of a tuple or list."""
    if isinstance(values, torch.Tensor):
        return values
    if isinstance(values, tuple | list):
        return next((value for value in values if isinstance(value, torch.Tensor)), None)
    return None


def argument(value: Any) -> Argument:
    """Keep of a value only what can tell the phase."""
    if isinstance(value, bool):
        return Argument(flag=value)
    if isinstance(value, torch.Tensor):
        return Argument(shape=tuple(value.shape), floating=value.is_floating_point())
    flags = ((name, getattr(value, name, None)) for name in PHASE_NAMES)
    return Argument(flags=tuple((name, flag) for name, flag in flags if isinstance(flag, bool)))


class _Hooks:
    """Hooks on every module for the time of a `with` block."""

    def __init__(self, module: nn.Module, file: str, source: SourceFile) -> None:
        self.module, self.file, self.source = module, file, source
        self.steps = [Step(), Step()]
        self._step = self.steps[0]
        self._fqn = {id(m): name for name, m in module.named_modules()}
        self._stack: list[Call] = []
        self._events = 0
        self._alive: list[torch.Tensor] = []  # so that no identity is used twice
        self._handles: list[Any] = []
        self._positions: dict[CodeType, list[Any]] = {}
        self._forwards: dict[type, tuple[str, list[str]] | None] = {}

    def start_decode(self) -> None:
        self._step = self.steps[1]
        self._events = 0

    def __enter__(self) -> None:
        for module in self.module.modules():
            self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after, with_kwargs=True))

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._alive.clear()

    def _before(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        site, owner = self._site()
        parent = self._stack[-1] if self._stack else None
        call = Call(self._fqn[id(module)], site, owner, parent, self._next_event())
        call.inputs = [self._tensor(k, v) for k, v in (*enumerate(args), *kwargs.items()) if torch.is_tensor(v)]
        self._step.calls.append(call)
        self._stack.append(call)
        forward = self._forward(type(module))
        if forward is not None:
            name, parameters = forward
            values = {**dict(zip(parameters, args, strict=False)), **kwargs}
            self._step.arguments.setdefault(name, []).append({k: argument(v) for k, v in values.items()})

    def _after(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        call = self._stack.pop()
        call.exit = self._next_event()
        values = enumerate(output) if isinstance(output, tuple | list) else [(None, output)]
        call.outputs = [self._tensor(k, v) for k, v in values if torch.is_tensor(v)]

    def _next_event(self) -> int:
        self._events += 1
        return self._events

    def _tensor(self, position: int | str | None, value: torch.Tensor) -> Tensor:
        self._alive.append(value)
        version = object() if value.is_inference() else value._version
        return Tensor(position, id(value), version, tuple(value.shape))

    def _site(self) -> tuple[Site | None, str | None]:
        """The innermost frame of the file, if it is a method of the module that is running, or of one inside it."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        if frame is None or not self._stack:
            return None, None
        owner, running = self._fqn.get(id(frame.f_locals.get("self"))), self._stack[-1].fqn
        if owner is None or not f"{owner}.".startswith(f"{running}." if running else ""):
            return None, None  # made by another file, inside a call that this frame made
        code = frame.f_code
        if code not in self._positions:
            self._positions[code] = list(code.co_positions())
        line, end_line, _, end_column = self._positions[code][frame.f_lasti // 2]
        if None in (line, end_line, end_column):
            return None, None
        characters = len(self.source.lines[end_line - 1].encode()[:end_column].decode())
        self._note_locals(code, frame)
        return Site(code.co_qualname, line, end_line, characters), owner

    def _note_locals(self, code: CodeType, frame: FrameType) -> None:
        """A method other than `forward` was not called through a hook: its parameters are read from the frame."""
        if code.co_name != "forward":
            names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
            values = {name: argument(frame.f_locals[name]) for name in names if name in frame.f_locals}
            self._step.arguments.setdefault(code.co_qualname, []).append(values)

    def _forward(self, cls: type) -> tuple[str, list[str]] | None:
        if cls not in self._forwards:
            function = inspect.unwrap(cls.forward)  # type: ignore[attr-defined]
            code = getattr(function, "__code__", None)
            if code is None or code.co_filename != self.file:
                self._forwards[cls] = None
            else:
                self._forwards[cls] = (code.co_qualname, list(inspect.signature(function).parameters)[1:])
        return self._forwards[cls]


def _refuse_without_positions(python_module: ModuleType, source: SourceFile) -> None:
    compiled = {(c.co_qualname, c.co_firstlineno): c for c in _codes(compile(source.tree, str(source.path), "exec"))}
    for code in _method_codes(python_module):
        if all(column is None for _, _, _, column in code.co_positions()):
            raise RefusedError(
                [
                    Problem(
                        "error",
                        "no-call-positions",
                        f"{source.path.name} was compiled without column positions, so its call sites can't be found",
                        "Run Python without -X no_debug_ranges and PYTHONNODEBUGRANGES, and delete the file's .pyc.",
                    )
                ]
            )
        now = compiled.get((code.co_qualname, code.co_firstlineno))
        if now is None or now.co_linetable != code.co_linetable:
            raise RefusedError(
                [
                    Problem(
                        "error",
                        "source-changed",
                        f"{source.path} was edited after it was imported: {code.co_qualname} is not what runs",
                        "Start again in a fresh process.",
                    )
                ]
            )


def _codes(code: CodeType) -> list[CodeType]:
    inner = [c for const in code.co_consts if isinstance(const, CodeType) for c in _codes(const)]
    return [code, *inner]


def _method_codes(python_module: ModuleType) -> list[CodeType]:
    """Code of the methods of the file's module classes."""
    found = []
    for cls in vars(python_module).values():
        if isinstance(cls, type) and issubclass(cls, nn.Module) and cls.__module__ == python_module.__name__:
            functions: list[Callable[..., Any]] = [
                inspect.unwrap(f) for f in vars(cls).values() if inspect.isfunction(f)
            ]
            found += [f.__code__ for f in functions if f.__code__.co_filename == inspect.getfile(python_module)]
    return found
