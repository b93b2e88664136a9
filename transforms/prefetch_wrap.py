"""The wrap realisation of a plan: hooks on one model instance, no source needed."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from models.prefetch import npu_prefetch
from models.problems import Problem, raise_errors
from transforms.example import Example
from transforms.phase import is_decode
from transforms.plan import Plan, Prefetch
from transforms.realisation import Realisation
from transforms.recording import first_tensor


@dataclass
class Wrapped:
    """A model whose calls issue the plan's prefetches.

    Attributes:
        module: the model that was given; its `state_dict` keys are unchanged.
    """

    module: nn.Module
    _handles: list[Any]

    def undo(self) -> None:
        """Take every hook off again. What was compiled before keeps its prefetches: compile again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> nn.Module:
        return self.module

    def __exit__(self, *error: object) -> None:
        self.undo()


def prefetch_wrap(loaded: Any, plan: Plan) -> Wrapped:
    """Let the model issue the plan's prefetches in decode, by hooks on its modules.

    Wrap before `torch.compile` or `torch.export`: a compiled graph does not look for new hooks. Copies of the model
    (`copy.deepcopy`) prefetch their own weights.

    Args:
        loaded: a `LoadedModel`, or a plain module that is called with the phase or with the query tokens.
        plan: what to prefetch.

    Returns:
        The wrapped model; also a context manager that yields it and undoes the wrapping.

    Raises:
        RefusedError: the model has no such parameters or modules; nothing has been wrapped.
    """
    if isinstance(loaded, nn.Module):
        module, root, tokens = loaded, loaded, 1
    else:
        module = loaded.module
        root = module.get_submodule(loaded.root)
        tokens = 1 + getattr(getattr(loaded, "deployment", None), "next_n", 0)
    modules = dict(module.named_modules())
    raise_errors(_unknown(module, modules, plan))
    phase = _Phase()
    names = [*inspect.signature(inspect.unwrap(root.forward)).parameters]
    handles = [root.register_forward_pre_hook(_SetPhase(phase, names, tokens), with_kwargs=True)]
    handles.append(root.register_forward_hook(_ClearPhase(phase), always_call=True))
    for (fqn, port), entries in _by_tensor(plan).items():
        copies = [_Copy(modules[owner], name, e.max_size, e.offset) for e, owner, name in entries]
        if port == "input":
            handles.append(modules[fqn].register_forward_pre_hook(_OnInput(phase, copies), with_kwargs=True))
        else:
            handles.append(modules[fqn].register_forward_hook(_OnOutput(phase, copies)))
    return Wrapped(module, handles)


def realise(loaded: Any, plan: Plan, recording: Any = None) -> Realisation:
    """Wrap for the time of a `with` block, or lend the model as it is; needs no recording."""

    def build(enabled: bool, directory: Path) -> Wrapped | nn.Module:
        return prefetch_wrap(loaded, plan) if enabled else loaded.module

    return Realisation(build)


# Hooks are objects, not closures, so that `copy.deepcopy` rebinds them to the copied modules and pickling works.


class _Phase:
    """Whether the step that is running is a decode step; shared by all hooks of one wrapping."""

    decode = False


@dataclass
class _Copy:
    """One prefetch. Holds the owner and the name, because loading a checkpoint may replace the parameter itself."""

    owner: nn.Module
    name: str
    max_size: int
    offset: int


@dataclass
class _SetPhase:
    phase: _Phase
    names: list[str]
    tokens: int

    def __call__(self, module: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> None:
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        self.phase.decode = is_decode(given, self.tokens)


@dataclass
class _ClearPhase:
    phase: _Phase

    def __call__(self, module: nn.Module, args: tuple, output: Any) -> None:
        self.phase.decode = False


@dataclass
class _OnInput:
    phase: _Phase
    copies: list[_Copy]

    def __call__(self, module: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> None:
        _issue(self.phase, self.copies, [*args, *kwargs.values()])


@dataclass
class _OnOutput:
    phase: _Phase
    copies: list[_Copy]

    def __call__(self, module: nn.Module, args: tuple, output: Any) -> None:
        _issue(self.phase, self.copies, output)


def _issue(phase: _Phase, copies: list[_Copy], values: Any) -> None:
    if phase.decode:
        dependency = first_tensor(values)
        if dependency is not None:
            for copy in copies:
                npu_prefetch(True, getattr(copy.owner, copy.name), dependency, copy.max_size, copy.offset)


def _by_tensor(plan: Plan) -> dict[tuple[str, str], list[tuple[Prefetch, str, str]]]:
    found: dict[tuple[str, str], list[tuple[Prefetch, str, str]]] = {}
    for entry in plan.prefetch:
        owner, _, name = entry.weight.rpartition(".")
        found.setdefault((entry.dependency, entry.port), []).append((entry, owner, name))
    return found


def _unknown(module: nn.Module, modules: Mapping[str, nn.Module], plan: Plan) -> list[Problem]:
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    problems = []
    for entry in plan.prefetch:
        for kind, name, known in (
            ("parameter", entry.weight, entry.weight in parameters),
            ("module", entry.dependency, entry.dependency in modules),
        ):
            if not known:
                key = f"recipe.prefetch.targets.{entry.target}"
                message = f"{entry.target} (layer {entry.layer}): the model has no {kind} {name}"
                problems.append(Problem("error", "not-placeable", message, "Resolve the plan on this model.", key))
    return problems


EXAMPLES = (
    Example(
        "the calls of one decode step; the source stays as it is",
        """\
from torch import nn


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = nn.Linear(8, 8)
        self.mlp = nn.Linear(8, 8)

    def forward(self, hidden_states, is_prefill):
        return self.mlp(self.attention(hidden_states))


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config) for _ in range(2)])

    def forward(self, hidden_states, is_prefill):
        for layer in self.layers:
            hidden_states = layer(hidden_states, is_prefill)
        return hidden_states
""",
        """\
layers.0.mlp.weight after layers.0.attention
layers.1.attention.weight after layers.0.mlp
layers.1.mlp.weight after layers.1.attention
""",
        (("{i}.mlp.weight", "{i}.attention"), ("{i+1}.attention.weight", "{i}.mlp")),
    ),
)
