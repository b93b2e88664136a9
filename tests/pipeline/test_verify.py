"""The rungs *compiles* and *numerics*: what passes, and that each wrong transform fails with a telling detail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.verify import baseline_run, check_compiles, check_numerics
from tests.pipeline.small_model import PLAN, Loaded, Model, observe, prefetch

POINTS = {"gate_up": "o_proj:output", "down": "gate_up:input", "o_next": "down:output"}


def right(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    """What a correct transform issues."""
    for p in PLAN.prefetch:
        if not is_prefill and p.layer == layer and POINTS[p.target] == point:
            prefetch(model.get_parameter(p.weight).data, tensor, p.max_size, p.offset)


def transformed(issue: Callable[..., None], change: Callable[[Any], None] = lambda m: None) -> Callable[[bool], Model]:
    """A `build` whose model issues these calls when the switch is on."""

    def build(switch: bool) -> Model:
        model = Model(issue if switch else None)
        if switch:
            change(model)
        return model

    return build


def check(issue: Callable[..., None], plan: Any = PLAN, **options: Any) -> Any:
    return check_numerics(Loaded(), plan, transformed(issue, **options), observe=observe)


def test_a_correct_transform_passes_and_counts_one_decode_step() -> None:
    rung, planned, observed, *_ = check(right)
    assert (rung.status, planned, observed) == ("passed", 5, 5), rung.detail
    assert "bit for bit" in rung.detail and "5 prefetch calls" in rung.detail


def test_the_baseline_can_be_made_once_for_many_plans() -> None:
    loaded = Loaded()
    baseline = baseline_run(loaded)
    calls = []
    loaded.module.register_forward_pre_hook(lambda *a: calls.append(1))
    for _ in range(2):
        rung, *_ = check_numerics(loaded, PLAN, transformed(right), baseline, observe)
        assert rung.status == "passed", rung.detail
    assert not calls, "the unmodified model ran again"


def test_an_empty_plan_without_calls_passes() -> None:
    rung, planned, observed, *_ = check(lambda *a: None, replace(PLAN, prefetch=()))
    assert (rung.status, planned, observed) == ("passed", 0, 0)


def no_op(*_: Any) -> None:
    """A transform that changes nothing."""


def in_prefill(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    right(model, layer, point, tensor, False)


def wrong_weight(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    if layer == 1 and point == "gate_up:input" and not is_prefill:
        prefetch(model.layers[0].down.weight, tensor, 64)
    else:
        right(model, layer, point, tensor, is_prefill)


def copy_of_the_weight(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    if layer == 0 and point == "o_proj:output" and not is_prefill:
        prefetch(model.layers[0].gate_up.weight.clone(), tensor, 64)
    else:
        right(model, layer, point, tensor, is_prefill)


def wrong_dependency(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    if layer == 0 and point == "down:output":
        model.kept = tensor
    stale = layer == 1 and point == "o_proj:output" and not is_prefill
    right(model, layer, point, model.kept if stale else tensor, is_prefill)


def equal_dependency(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    right(model, layer, point, tensor.clone() if point == "o_proj:output" else tensor, is_prefill)


def no_dependency(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    if not is_prefill and point == "o_proj:output":
        prefetch(model.layers[layer].gate_up.weight, None, 64)
    else:
        right(model, layer, point, tensor, is_prefill)


def wrong_order(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    # Both dependencies exist at this point, so only the order is wrong.
    if point == "o_proj:output":
        return
    if point == "gate_up:input":
        right(model, layer, "gate_up:input", tensor, is_prefill)
        right(model, layer, "o_proj:output", tensor, is_prefill)
    else:
        right(model, layer, point, tensor, is_prefill)


def extra_call(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    right(model, layer, point, tensor, is_prefill)
    if layer == 1 and point == "gate_up:input" and not is_prefill:
        prefetch(model.layers[1].down.weight, tensor, 64)


def missing_call(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    if not (layer == 1 and point == "gate_up:input"):
        right(model, layer, point, tensor, is_prefill)


def wrong_size(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    if layer == 0 and point == "gate_up:input" and not is_prefill:
        prefetch(model.layers[0].down.weight, tensor, 32)
    else:
        right(model, layer, point, tensor, is_prefill)


def wrong_offset(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
    if layer == 0 and point == "gate_up:input" and not is_prefill:
        prefetch(model.layers[0].down.weight, tensor, 64, 16)
    else:
        right(model, layer, point, tensor, is_prefill)


@pytest.mark.parametrize(
    ("issue", "words"),
    [
        (no_op, ["decode step 1", "no prefetch call was observed", "5 are planned", "layers.0.gate_up.weight"]),
        (in_prefill, ["prefill: 5 prefetch call(s)", "layers.0.gate_up.weight after layers.0.o_proj:output"]),
        (
            wrong_weight,
            ["decode step 1, call 5 of 5 (down)", "planned layers.1.down.weight, observed layers.0.down.weight"],
        ),
        (copy_of_the_weight, ["call 1 of 5", "observed a tensor that is no parameter of the model"]),
        (
            wrong_dependency,
            ["call 4 of 5 (gate_up)", "dependency: planned layers.1.o_proj:output", "observed layers.0.down:output"],
        ),
        (equal_dependency, ["call 1 of 5", "dependency: planned layers.0.o_proj:output", "none of the plan's modules"]),
        (no_dependency, ["call 1 of 5", "observed no tensor"]),
        (wrong_order, ["call 1 of 5", "observed layers.0.down.weight", "planned at position 2"]),
        (
            extra_call,
            ["6 prefetch calls, 5 are planned", "too many: layers.1.down.weight after layers.1.o_proj:output"],
        ),
        (
            missing_call,
            ["4 prefetch calls, 5 are planned", "missing: layers.1.down.weight after layers.1.gate_up:input"],
        ),
        (wrong_size, ["call 2 of 5 (down)", "max_size: planned 64, observed 32 bytes"]),
        (wrong_offset, ["call 2 of 5 (down)", "offset: planned 0, observed 16 bytes"]),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_wrong_transform_fails_and_says_where(issue: Callable[..., None], words: list[str]) -> None:
    rung, planned, _, *_ = check(issue)
    assert rung.status == "failed" and planned == 5
    for word in words:
        assert word in rung.detail, rung.detail


def test_a_call_after_its_own_target_ran_fails() -> None:
    def late(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
        if point == "o_proj:output":
            model.kept = tensor
        elif point == "gate_up:activated":
            right(model, layer, "o_proj:output", model.kept, is_prefill)
        elif point != "gate_up:input":
            right(model, layer, point, tensor, is_prefill)

    plan = replace(PLAN, prefetch=tuple(p for p in PLAN.prefetch if p.target != "down"))
    rung, *_ = check(late, plan)
    assert rung.status == "failed"
    assert "issued only after layers.0.gate_up.weight had been read" in rung.detail


def test_a_dependency_that_was_changed_in_place_before_the_call_fails() -> None:
    def changed(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
        if point == "o_proj:output":
            tensor.mul_(1.0)
        right(model, layer, point, tensor, is_prefill)

    rung, *_ = check(changed)
    assert rung.status == "failed"
    assert "planned layers.0.o_proj:output" in rung.detail and "layers.0.gate_up:input" in rung.detail


def test_a_dependency_that_is_changed_in_place_after_the_call_passes() -> None:
    def changed(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
        right(model, layer, point, tensor, is_prefill)
        if point == "o_proj:output":
            tensor.mul_(1.0)

    plan = replace(PLAN, prefetch=tuple(p for p in PLAN.prefetch if p.port == "output"))

    def only_outputs(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
        if point != "gate_up:input":
            changed(model, layer, point, tensor, is_prefill)

    rung, *_ = check(only_outputs, plan)
    assert rung.status == "passed", rung.detail


def test_a_call_outside_the_models_forward_fails() -> None:
    class Outside(Loaded):
        def run(self, module: Any = None, **options: Any) -> list[torch.Tensor]:
            outputs = super().run(module, **options)
            if module is not None and module.issue is not None:
                prefetch(module.layers[0].down.weight, outputs[-1], 64)
            return outputs

    rung, *_ = check_numerics(Outside(), PLAN, transformed(right), observe=observe)
    assert rung.status == "failed" and "1 prefetch call(s) outside the model's forward" in rung.detail


def test_a_view_of_the_whole_dependency_is_the_dependency() -> None:
    def viewed(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
        right(model, layer, point, tensor.view(-1), is_prefill)

    assert check(viewed).rung.status == "passed"


def test_a_deviation_in_a_later_decode_step_is_found() -> None:
    def forgetful(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
        model.seen = getattr(model, "seen", 0) + (layer == 0 and point == "o_proj:output" and not is_prefill)
        if model.seen < 3:
            right(model, layer, point, tensor, is_prefill)

    rung, _, observed, *_ = check(forgetful)
    assert rung.status == "failed" and observed == 5
    assert "decode step 3, no prefetch call was observed" in rung.detail


def test_other_numbers_fail_with_step_and_size() -> None:
    def change(model: Any) -> None:
        model.scale = 1.0 + 1e-6

    rung, *_ = check(right, change=change)
    assert rung.status == "failed"
    assert "switch on: the output of prefill is not the baseline's" in rung.detail
    assert "values differ from the baseline, by up to" in rung.detail


def test_other_numbers_only_in_decode_are_found() -> None:
    def nudge(model: Any, layer: int, point: str, tensor: torch.Tensor, is_prefill: bool) -> None:
        right(model, layer, point, tensor, is_prefill)
        if point == "down:output" and not is_prefill:
            tensor.add_(1e-3)

    rung, *_ = check(nudge)
    assert "the output of decode step 1 is not the baseline's" in rung.detail


def test_calls_and_numbers_with_the_switch_off_must_be_those_of_the_baseline() -> None:
    def build(switch: bool) -> Model:
        model = Model(right)
        model.scale = 1.0 if switch else 2.0
        return model

    rung, *_ = check_numerics(Loaded(), PLAN, build, observe=observe)
    assert "switch off: 15 prefetch call(s) were observed, none must be" in rung.detail
    assert "switch off: the output of prefill is not the baseline's" in rung.detail


def test_changed_state_dict_keys_fail() -> None:
    def change(model: Any) -> None:
        model.register_buffer("scratch", torch.zeros(1))

    rung, *_ = check(right, change=change)
    assert rung.status == "failed" and "state_dict keys differ" in rung.detail and "extra scratch" in rung.detail


def test_a_model_that_raises_fails_with_the_place() -> None:
    def broken(model: Any, *_: Any) -> None:
        raise AttributeError("no such weight")

    rung, *_ = check(broken)
    assert rung.status == "failed"
    assert "AttributeError: no such weight" in rung.detail and "test_verify.py:" in rung.detail


def test_a_baseline_that_proves_nothing_is_not_used() -> None:
    class Noisy(Model):
        def forward(self, x: torch.Tensor, is_prefill: bool) -> torch.Tensor:
            return super().forward(x, is_prefill) + torch.rand(1)

    rung, *_ = check_numerics(Loaded(Noisy()), PLAN, transformed(right), observe=observe)
    assert rung.status == "could_not_check" and "again" in rung.detail

    infinite = Loaded()
    infinite.module.scale = float("inf")
    rung, *_ = check_numerics(infinite, PLAN, transformed(right), observe=observe)
    assert rung.status == "could_not_check" and "finite" in rung.detail


def test_a_wrap_is_undone_after_each_run() -> None:
    loaded = Loaded()
    states: list[str] = []

    @contextmanager
    def build(switch: bool) -> Iterator[nn.Module]:
        loaded.module.issue = right if switch else None
        states.append("wrapped" if switch else "plain")
        yield loaded.module
        loaded.module.issue = None
        states.append("undone")

    rung, *_ = check_numerics(loaded, PLAN, build, observe=observe)
    assert rung.status == "passed", rung.detail
    assert states == ["wrapped", "undone", "plain", "undone"]


def test_compiles_passes_for_a_model_that_runs() -> None:
    rung = check_compiles(Loaded(), transformed(right), {"a.py": "x = 1\n"})
    assert rung.status == "passed" and "1 rewritten file" in rung.detail


def test_compiles_names_the_line_that_does_not_parse() -> None:
    rung = check_compiles(Loaded(), transformed(right), {"modeling.py": "x = 1\ny = = 2\n"})
    assert rung.status == "failed" and "(modeling.py:2)" in rung.detail


def test_compiles_tells_building_from_running() -> None:
    def no_build(switch: bool) -> Model:
        raise NameError("name 'q' is not defined")

    def no_run(model: Any, *_: Any) -> None:
        raise ValueError("bad step")

    assert "does not build: NameError" in check_compiles(Loaded(), no_build).detail
    assert "does not run: ValueError: bad step" in check_compiles(Loaded(), transformed(no_run)).detail
