"""The numerics rung compares SuperKernel scopes with the plan: where they start and end, in which step, their names."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from models.loading import SEEDED
from models.superkernel import close_scope, open_scope
from pipeline.verify import NumericsResult, check_numerics
from transforms.plan import Plan, Scope

OPTIONS = (("stream-fusion", "1"),)
TEXT = "stream-fusion=1"
PLAN = Plan(
    "toy",
    "toy",
    "ge_graph",
    scopes=tuple(Scope(f"part_{i}", OPTIONS, f"layers.{i}.norm", f"layers.{i}.up") for i in range(2)),
)
Act = Callable[[int, str, bool], None]


class Layer(nn.Module):
    """norm -> up -> down, and a place between any two of them at which something may happen."""

    def __init__(self, index: int, act: Act) -> None:
        super().__init__()
        self.index, self.act = index, act
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, is_prefill: bool) -> torch.Tensor:
        for name in ("norm", "up", "down"):
            self.act(self.index, f"before {name}", is_prefill)
            x = getattr(self, name)(x)
        self.act(self.index, "end", is_prefill)
        return x


class Toy(nn.Module):
    def __init__(self, act: Act = lambda *a: None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer(i, act) for i in range(2)])

    def forward(self, x: torch.Tensor, is_prefill: bool) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, is_prefill)
        return x


@dataclass
class Loaded:
    module: nn.Module
    weights: str = SEEDED

    @torch.no_grad()
    def run(
        self,
        module: nn.Module | None = None,
        decode_steps: int = 3,
        before_decode: Callable[[], None] = lambda: None,
        seed: int = 1,
    ) -> list[torch.Tensor]:
        module = module or self.module
        outputs = [module(torch.ones(4, 8), True)]
        before_decode()
        return outputs + [module(torch.full((2, 8), float(step)), False) for step in range(decode_steps)]


def at(opens: str = "before norm", closes: str = "before down", label: str = "part_{i}", options: str = TEXT) -> Act:
    """Opens and closes a scope at these places in decode."""

    def act(index: int, place: str, is_prefill: bool) -> None:
        if not is_prefill:
            if place == closes:
                close_scope(label.format(i=index), options)
            if place == opens:
                open_scope(label.format(i=index), options)

    return act


def check(act: Act, plan: Plan = PLAN, off: Act = lambda *a: None) -> NumericsResult:
    loaded: Any = Loaded(Toy())
    return check_numerics(loaded, plan, lambda switch: Toy(act if switch else off))


def test_the_planned_scopes_pass_and_are_counted() -> None:
    result = check(at())
    assert result.rung.status == "passed", result.rung.detail
    assert (result.scopes_planned, result.scopes_observed) == (2, 2)
    assert (result.calls_planned, result.calls_observed) == (0, 0)
    assert "2 SuperKernel scopes per decode step" in result.rung.detail


def in_prefill_too(index: int, place: str, is_prefill: bool) -> None:
    at()(index, place, False)


def only_layer(layer: int) -> Act:
    return lambda index, place, is_prefill: at()(index, place, is_prefill) if index == layer else None


def never_closed(index: int, place: str, is_prefill: bool) -> None:
    at(closes="never")(index, place, is_prefill or index == 1)


def extra(index: int, place: str, is_prefill: bool) -> None:
    at()(index, place, is_prefill)
    if index == 1:
        at("before down", "end", "more_{i}")(index, place, is_prefill)


def nested(index: int, place: str, is_prefill: bool) -> None:
    at()(index, place, is_prefill)
    at("before up", "end", "inner_{i}")(index, place, is_prefill)


@pytest.mark.parametrize(
    ("act", "finding"),
    [
        (lambda *a: None, "decode step 1, no scope was opened, 2 are planned, the first: part_0 from layers.0.norm to"),
        (at(closes="before up"), "scope 1 of 2 (part_0): it ends with layers.0.norm, planned layers.0.up"),
        (at(closes="end"), "scope 1 of 2 (part_0): it ends with layers.0.down, planned layers.0.up"),
        (at(opens="before up"), "scope 1 of 2 (part_0): it starts with layers.0.up, planned layers.0.norm"),
        (at(label="other_{i}"), "scope 1 of 2 (part_0): observed scope other_0 instead"),
        (at(label="part_0"), "scope 2 of 2 (part_1): observed scope part_0 instead"),
        (at(options=""), "scope 1 of 2 (part_0): options: planned stream-fusion=1, observed none"),
        (in_prefill_too, "prefill: 2 scope(s) were opened, none must be; the first: part_0"),
        (only_layer(0), "1 scopes, 2 are planned; the first that is missing: part_1"),
        (only_layer(1), "scope 1 of 2 (part_0): observed scope part_1 instead"),
        (never_closed, "scope part_0 is not closed"),
        (extra, "3 scopes, 2 are planned; the first that is too many: more_1"),
        (nested, "scope inner_0 is opened inside of scope part_0"),
    ],
)
def test_a_deviation_fails_and_is_named(act: Act, finding: str) -> None:
    result = check(act)
    assert result.rung.status == "failed"
    assert finding in result.rung.detail


def test_none_may_be_opened_with_the_switch_off() -> None:
    detail = check(at(), off=at()).rung.detail
    assert "switch off: 6 scope(s) were opened, none must be" in detail


def test_unplanned_scopes_are_found_without_any_in_the_plan() -> None:
    detail = check(at(), replace(PLAN, scopes=())).rung.detail
    assert "2 scopes, 0 are planned; the first that is too many: part_0" in detail


def test_modules_around_the_first_and_the_last_may_be_inside() -> None:
    """A scope around the call of a layer whose first module is the planned one."""

    class Around(Toy):
        def forward(self, x: torch.Tensor, is_prefill: bool) -> torch.Tensor:
            for index, layer in enumerate(self.layers):
                if not is_prefill and switched:
                    open_scope(f"part_{index}", TEXT)
                x = layer(x, is_prefill)
                if not is_prefill and switched:
                    close_scope(f"part_{index}", TEXT)
            return x

    switched = False

    def build(switch: bool) -> nn.Module:
        nonlocal switched
        switched = switch
        return Around()

    whole = [Scope(f"part_{i}", OPTIONS, f"layers.{i}.norm", f"layers.{i}.down") for i in range(2)]
    loaded: Any = Loaded(Toy())
    result = check_numerics(loaded, replace(PLAN, scopes=tuple(whole)), build)
    assert result.rung.status == "passed", result.rung.detail
