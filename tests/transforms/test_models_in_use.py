"""What people do with a transformers model still works on a rewritten and on a wrapped one."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from models.prefetch import observe
from tests.transforms import real_models
from transforms.plan import Plan
from transforms.prefetch_source import load_rewritten, prefetch_source
from transforms.prefetch_wrap import prefetch_wrap

NEW_TOKENS = 4


class InUse:
    """A model with its switch on, and what it must not differ from."""

    def __init__(self, realisation: str, directory: Path) -> None:
        self.loaded = real_models.load("qwen3_moe")  # bare stacks of experts, and links into the next layer
        self.plan: Plan = real_models.make_plan(self.loaded, real_models.TARGETS["qwen3_moe"])
        self.baseline: Any = copy.deepcopy(self.loaded.module)
        self.python_module: Any = None
        if realisation == "source":
            result = prefetch_source(self.loaded, self.plan)
            self.python_module = load_rewritten(self.loaded, result, directory)
            self.module: Any = self.loaded.rebuild(self.python_module, enable_prefetch=True)
        else:
            self.module = prefetch_wrap(self.loaded, self.plan).module

    def issued(self, module: nn.Module) -> list[str]:
        """Weights, by name in this very module, that one decode step prefetches."""
        names = {p.data_ptr(): name for name, p in module.named_parameters()}
        with observe() as calls:
            self.loaded.run(module, decode_steps=1)
        return [names[call.weight.data_ptr()] for call in calls]

    @property
    def planned(self) -> list[str]:
        return [entry.weight for entry in self.plan.prefetch]


@pytest.fixture(params=["source", "wrap"], scope="module")
def in_use(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> InUse:
    return InUse(request.param, tmp_path_factory.mktemp("rewritten"))


def generated(module: Any) -> torch.Tensor:
    ids = torch.arange(3, 9).view(2, 3)
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    return module.generate(ids, attention_mask=torch.ones_like(ids), **options)


def test_generate_gives_the_same_tokens_and_prefetches_in_every_decode_step(in_use: InUse) -> None:
    with observe() as calls:
        tokens = generated(in_use.module)
    assert torch.equal(tokens, generated(in_use.baseline))
    assert len(calls) == len(in_use.planned) * (NEW_TOKENS - 1)  # the first token comes from the prefill


def test_state_dicts_go_both_ways(in_use: InUse) -> None:
    ours, theirs = in_use.module.state_dict(), in_use.baseline.state_dict()
    assert list(ours) == list(theirs)
    in_use.module.load_state_dict(theirs, strict=True)
    in_use.baseline.load_state_dict(ours, strict=True)
    assert in_use.issued(in_use.module) == in_use.planned


def test_a_copy_prefetches_its_own_weights(in_use: InUse) -> None:
    copied = copy.deepcopy(in_use.module)
    assert in_use.issued(copied) == in_use.planned  # `issued` knows only the copy's weights
    assert in_use.issued(in_use.module) == in_use.planned


def test_what_it_saves_loads_in_the_original_class(in_use: InUse, tmp_path: Path) -> None:
    in_use.module.save_pretrained(tmp_path / "checkpoint")
    original = type(in_use.baseline).from_pretrained(tmp_path / "checkpoint", attn_implementation="eager")
    assert torch.equal(generated(original), generated(in_use.baseline))
    assert in_use.issued(original) == []


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InUse]:
    """The rewritten class is what the Auto class builds, as a user would have it."""
    in_use = InUse("source", tmp_path_factory.mktemp("rewritten"))
    mapping = AutoModelForCausalLM._model_mapping
    before = dict(mapping._extra_content)
    AutoModelForCausalLM.register(type(in_use.module.config), type(in_use.module), exist_ok=True)
    yield in_use
    mapping._extra_content.clear()
    mapping._extra_content.update(before)


def test_auto_classes_build_and_load_the_rewritten_model(registered: InUse, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    registered.baseline.save_pretrained(folder)  # a checkpoint of the original
    config = AutoConfig.from_pretrained(folder, attn_implementation="eager")
    config.enable_prefetch = True
    loaded = AutoModelForCausalLM.from_pretrained(folder, config=config).eval()
    assert type(loaded).__module__ == registered.python_module.__name__
    assert registered.issued(loaded) == registered.planned
    assert torch.equal(generated(loaded), generated(registered.baseline))
    built = AutoModelForCausalLM.from_config(config).eval()
    assert registered.issued(built) == registered.planned


def test_without_the_switch_in_the_config_nothing_is_prefetched(registered: InUse, tmp_path: Path) -> None:
    registered.baseline.save_pretrained(tmp_path / "checkpoint")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint").eval()
    assert type(loaded).__module__ == registered.python_module.__name__
    assert registered.issued(loaded) == []
