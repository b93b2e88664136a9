"""The wrap realisation of a plan's SuperKernel scopes: hooks that open and close them, no source needed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from models.problems import Problem
from models.superkernel import close_scope, open_scope
from transforms.example import Example
from transforms.plan import Plan, Scope
from transforms.realisation import Realisation
from transforms.wrapping import Phase, Wrapped

_MODES = ("ge_graph", "npugraph_ex")


def add_scopes(wrapped: Wrapped, plan: Plan) -> None:
    """Let the model open every scope when it enters the first module, and close it when it leaves the last.

    Call it after the prefetches' hooks were added: what waits for the input of the first module, or for the output of
    the last one, is then issued outside. A step that raises closes what it has left open.
    """
    modules = dict(wrapped.module.named_modules())
    running: list[tuple[str, str]] = []
    for scope in plan.scopes:
        options = ":".join(f"{name}={value}" for name, value in scope.options)
        opened = _Open(wrapped.phase, running, scope.label, options)
        closed = _Close(running, scope.label, options)
        wrapped.handles.append(modules[scope.first].register_forward_pre_hook(opened))
        wrapped.handles.append(modules[scope.last].register_forward_hook(closed, prepend=True))
    if plan.scopes:
        # The last module's hook does not run if one before it raises; the step's own hook does.
        wrapped.handles.append(wrapped.root.register_forward_hook(_CloseLeft(running), always_call=True))


def scope_problems(modules: Mapping[str, nn.Module], plan: Plan) -> list[Problem]:
    """What is wrong with the scopes for this model."""
    problems = []
    for scope in plan.scopes:
        missing = [name for name in dict.fromkeys((scope.first, scope.last)) if name not in modules]
        problems += [_problem(scope, f"the model has no module {name}") for name in missing]
    if plan.scopes and plan.exe_mode not in _MODES:
        problems.append(_problem(plan.scopes[0], f"SuperKernel does not work in exe_mode {plan.exe_mode}"))
    return problems


def realise(loaded: Any, plan: Plan, recording: Any = None) -> Realisation:
    """See `wrap.realise`; of the plan, only the scopes."""
    from transforms.wrap import realise as realise_wrap

    return realise_wrap(loaded, replace(plan, prefetch=()))


def _problem(scope: Scope, message: str) -> Problem:
    fix = "Resolve the plan on this model."
    return Problem("error", "not-placeable", f"scope {scope.label}: {message}", fix, "recipe.superkernel")


@dataclass
class _Open:
    phase: Phase
    running: list[tuple[str, str]]
    label: str
    options: str

    def __call__(self, module: nn.Module, args: tuple) -> None:
        if self.phase.decode:
            open_scope(self.label, self.options)
            self.running.append((self.label, self.options))


@dataclass
class _Close:
    running: list[tuple[str, str]]
    label: str
    options: str

    def __call__(self, module: nn.Module, args: tuple, output: Any) -> None:
        if (self.label, self.options) in self.running:
            self.running.remove((self.label, self.options))
            close_scope(self.label, self.options)


@dataclass
class _CloseLeft:
    running: list[tuple[str, str]]

    def __call__(self, module: nn.Module, args: tuple, output: Any) -> None:
        while self.running:
            close_scope(*self.running.pop())


EXAMPLES = (
    Example(
        "the scopes of one decode step; the source stays as it is",
        """\
from torch import nn


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.Linear(8, 8)
        self.mlp = nn.Linear(8, 8)

    def forward(self, hidden_states, is_prefill):
        return self.mlp(self.attention(self.norm(hidden_states)))


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
attention_0: layers.0.norm layers.0.attention
attention_1: layers.1.norm layers.1.attention
""",
        (),
        (("attention_{i}", "{i}.norm", "{i}.attention"),),
    ),
)
