"""A two-layer model of our own whose prefetch calls a test writes by hand, and a loader that drives it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from models.loading import SEEDED
from transforms.plan import Plan, Prefetch

SIZE = 8
_observers: list[list[Any]] = []


def prefetch(weight: torch.Tensor, dependency: torch.Tensor | None, max_size: int, offset: int = 0) -> None:
    """Stands for the operator: tells every observer."""
    for seen in _observers:
        seen.append((weight, dependency, max_size, offset))


@contextmanager
def observe(seen: list[Any]) -> Iterator[list[Any]]:
    _observers.append(seen)
    try:
        yield seen
    finally:
        _observers.remove(seen)


class Layer(nn.Module):
    """o_proj -> gate_up -> down, with a point at which a transform may issue calls after each tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.o_proj = nn.Linear(SIZE, SIZE, bias=False)
        self.gate_up = nn.Linear(SIZE, SIZE, bias=False)
        self.down = nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, x: torch.Tensor, issue: Callable[[str, torch.Tensor], None]) -> torch.Tensor:
        h = self.o_proj(x)
        issue("o_proj:output", h)
        issue("gate_up:input", h)
        g = self.gate_up(h).tanh()
        issue("gate_up:activated", g)
        h = self.down(g)
        issue("down:output", h)
        return x + h


class Model(nn.Module):
    """`issue(model, layer, point, tensor, is_prefill)` is what a transform would have written into the source."""

    def __init__(self, issue: Callable[..., None] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer() for _ in range(2)])
        self.issue = issue
        self.scale = 1.0

    def forward(self, x: torch.Tensor, is_prefill: bool) -> torch.Tensor:
        for i, layer in enumerate(self.layers):

            def issue(point: str, tensor: torch.Tensor, i: int = i) -> None:
                if self.issue is not None:
                    self.issue(self, i, point, tensor, is_prefill)

            x = layer(x, issue)
        return x * self.scale


@dataclass
class Loaded:
    """Drives the model like `LoadedModel.run`: a prefill, then decode steps that depend on all earlier ones."""

    module: nn.Module = field(default_factory=Model)
    weights: str = SEEDED

    def run(
        self, module: Any = None, decode_steps: int = 3, before_decode: Callable[[], None] = lambda: None
    ) -> list[torch.Tensor]:
        module = self.module if module is None else module
        generator = torch.Generator().manual_seed(1)
        outputs = [module(torch.randn(5, SIZE, generator=generator), is_prefill=True)]
        before_decode()
        for _ in range(decode_steps):
            outputs.append(module(outputs[-1][-1:].tanh(), is_prefill=False))
        return outputs


def weight(layer: int, name: str) -> str:
    return f"layers.{layer}.{name}.weight"


def entry(target: str, layer: int, w: str, dependency: str, port: str = "output", size: int = 64) -> Prefetch:
    return Prefetch(target, w, dependency, port, layer, SIZE * SIZE * 4, size)  # type: ignore[arg-type]


# Issue order: gate_up after o_proj, down after the input of gate_up, the next layer's o_proj after down.
PLAN = Plan(
    "small",
    "small/test",
    "ge_graph",
    (
        entry("gate_up", 0, weight(0, "gate_up"), "layers.0.o_proj"),
        entry("down", 0, weight(0, "down"), "layers.0.gate_up", "input"),
        entry("o_next", 0, weight(1, "o_proj"), "layers.0.down"),
        entry("gate_up", 1, weight(1, "gate_up"), "layers.1.o_proj"),
        entry("down", 1, weight(1, "down"), "layers.1.gate_up", "input"),
    ),
)
