"""Hooks on one instance: same keys, decode only, undone completely, copied and pickled with the model."""

import copy
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models.prefetch import observe
from models.problems import RefusedError
from tests.transforms.text_models import TextModel, load_text, plan_for
from transforms.plan import Plan
from transforms.prefetch_wrap import prefetch_wrap
from transforms.recording import record
from transforms.registry import TRANSFORMS, realise

BEFORE = TRANSFORMS["prefetch.wrap"].examples[0].before
TARGETS = {"layers.{i}.mlp.weight": "layers.{i}.attention", "layers.{i+1}.attention.weight": "layers.{i}.mlp:input"}


@pytest.fixture
def loaded(tmp_path: Path) -> TextModel:
    return load_text(BEFORE, tmp_path)


def test_state_and_outputs_are_unchanged(loaded: TextModel) -> None:
    keys, baseline = list(loaded.module.state_dict()), loaded.run()
    wrapped = prefetch_wrap(loaded, plan_for(loaded, TARGETS))
    assert list(wrapped.module.state_dict()) == keys
    assert all(map(torch.equal, baseline, loaded.run()))


def test_undo_takes_every_hook_off(loaded: TextModel) -> None:
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in loaded.module.modules()]
    with prefetch_wrap(loaded, plan_for(loaded, TARGETS)) as module:
        assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in module.modules()] != hooks
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in loaded.module.modules()] == hooks


def test_copies_and_pickles_prefetch_their_own_weights(loaded: TextModel) -> None:
    plan = plan_for(loaded, TARGETS)
    prefetch_wrap(loaded, plan)
    buffer = io.BytesIO()
    torch.save(loaded.module, buffer)
    buffer.seek(0)
    for module in (copy.deepcopy(loaded.module), torch.load(buffer, weights_only=False)):
        with observe() as calls:
            loaded.run(module, decode_steps=1)
        assert [id(c.weight) for c in calls] == [id(module.get_parameter(p.weight)) for p in plan.prefetch]


def test_replaced_parameters_are_found(loaded: TextModel) -> None:
    plan = plan_for(loaded, TARGETS)
    prefetch_wrap(loaded, plan)
    loaded.module.load_state_dict({k: v.clone() for k, v in loaded.module.state_dict().items()}, assign=True)
    with observe() as calls:
        loaded.run(decode_steps=1)
    assert [id(c.weight) for c in calls] == [id(loaded.module.get_parameter(p.weight)) for p in plan.prefetch]


def test_the_phase_does_not_survive_an_error(loaded: TextModel) -> None:
    prefetch_wrap(loaded, plan_for(loaded, TARGETS))
    with pytest.raises(RuntimeError):
        loaded.module(torch.ones(2, 1, 3), is_prefill=False)
    with observe() as calls:
        loaded.module.layers[0](torch.ones(2, 1, 8), False)  # outside a step of the whole model
    assert calls == []


def test_a_plain_module_can_be_wrapped(loaded: TextModel) -> None:
    plan = plan_for(loaded, TARGETS)
    with prefetch_wrap(loaded.module, plan), observe() as calls:
        loaded.run(decode_steps=1)
    assert len(calls) == len(plan.prefetch)


def test_unknown_weights_and_modules_are_all_reported_and_nothing_is_wrapped(loaded: TextModel) -> None:
    first, second, *_ = plan_for(loaded, TARGETS).prefetch
    broken = (replace(first, weight="nowhere.weight"), replace(second, dependency="nothing"))
    with pytest.raises(RefusedError) as refused:
        prefetch_wrap(loaded, Plan("m", "r", "eager", broken))
    found = [problem.message.partition("no ")[2] for problem in refused.value.problems]
    assert found == ["parameter nowhere.weight", "module nothing"]
    assert not any(m._forward_hooks for m in loaded.module.modules())


def test_a_dependency_that_a_step_calls_twice_is_refused_where_a_recording_tells(tmp_path: Path) -> None:
    """A hook would prefetch each time, and the plan has one call."""
    text = BEFORE.replace(
        "self.mlp(self.attention(hidden_states))", "self.mlp(self.attention(self.attention(hidden_states)))"
    )
    twice = load_text(text, tmp_path)
    plan = plan_for(twice, {"layers.{i}.mlp.weight": "layers.{i}.attention"})
    with pytest.raises(RefusedError, match=r"layers\.0\.attention is called 2 times in a decode step"):
        realise("wrap", twice, plan, record(twice))
