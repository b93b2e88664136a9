"""The wrap realisation of a plan's prefetches: hooks on one model instance, no source needed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from models.prefetch import npu_prefetch
from models.problems import Problem
from transforms.example import Example
from transforms.plan import Plan, Prefetch
from transforms.realisation import Realisation
from transforms.recording import Recording, first_tensor
from transforms.wrapping import Phase, Wrapped


def prefetch_wrap(loaded: Any, plan: Plan) -> Wrapped:
    """Let the model issue the plan's prefetches in decode; see `wrap.wrap`."""
    from transforms.wrap import wrap

    return wrap(loaded, replace(plan, scopes=()))


def realise(loaded: Any, plan: Plan, recording: Any = None) -> Realisation:
    """See `wrap.realise`; of the plan, only the prefetches."""
    from transforms.wrap import realise as realise_wrap

    return realise_wrap(loaded, replace(plan, scopes=()), recording)


def add_prefetches(wrapped: Wrapped, plan: Plan) -> None:
    """Add the hooks that issue the plan's prefetches."""
    modules = dict(wrapped.module.named_modules())
    for (fqn, port), entries in _by_tensor(plan).items():
        copies = [_Copy(modules[owner], name, e.max_size, e.offset) for e, owner, name in entries]
        if port == "input":
            hook = _OnInput(wrapped.phase, copies)
            wrapped.handles.append(modules[fqn].register_forward_pre_hook(hook, with_kwargs=True))
        else:
            wrapped.handles.append(modules[fqn].register_forward_hook(_OnOutput(wrapped.phase, copies)))


@dataclass
class _Copy:
    """One prefetch. Holds the owner and the name, because loading a checkpoint may replace the parameter itself."""

    owner: nn.Module
    name: str
    max_size: int
    offset: int


@dataclass
class _OnInput:
    phase: Phase
    copies: list[_Copy]

    def __call__(self, module: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> None:
        _issue(self.phase, self.copies, [*args, *kwargs.values()])


@dataclass
class _OnOutput:
    phase: Phase
    copies: list[_Copy]

    def __call__(self, module: nn.Module, args: tuple, output: Any) -> None:
        _issue(self.phase, self.copies, output)


def _issue(phase: Phase, copies: list[_Copy], values: Any) -> None:
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


def prefetch_problems(module: nn.Module, plan: Plan) -> list[Problem]:
    """What is wrong with the prefetches for this model."""
    modules = dict(module.named_modules())
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


def repeated_problems(recording: Recording, plan: Plan) -> list[Problem]:
    """Dependencies that are called several times in a decode step: a hook would prefetch each time."""
    problems = []
    for entry in plan.prefetch:
        calls = len(recording.decode.by_module.get(entry.dependency, []))
        if calls > 1:
            key = f"recipe.prefetch.targets.{entry.target}"
            message = (
                f"{entry.target} (layer {entry.layer}): {entry.dependency} is called {calls} times in a decode step"
            )
            problems.append(Problem("error", "not-placeable", message, "Choose another dependency.", key))
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
