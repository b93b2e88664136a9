"""`model.cache=static`: a cache that is allocated before the step, or a reason why the model can't have one."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

from models.hf.loaded import TransformersModel
from models.hf.stepping import State
from models.loading import ModelSpec, load, load_deployment, load_spec
from models.problems import RefusedError
from models.trace import trace


def loaded(model_type: str, cache: str | None = "static", size: str = "tiny", **served: int) -> TransformersModel:
    layers: dict[str, Any] = {"num_hidden_layers": 2} if size == "full" else {}
    spec = load_spec(f"hf/{model_type}", cache=cache, **layers)
    found = load(spec, load_deployment("unsharded", **served), "ge_graph", size)  # type: ignore[arg-type]
    assert isinstance(found, TransformersModel)
    return found


def caches_of(model: TransformersModel, decode_steps: int = 2) -> list[tuple[object, list[tuple[int, torch.Size]]]]:
    """The cache that every step of a run is given, and where its keys are after the step."""
    found: list = []

    def note(_: object, args: tuple, kwargs: dict, output: object) -> None:
        cache = kwargs.get("cache")
        found.append((cache, [(layer.keys.data_ptr(), layer.keys.shape) for layer in cache.layers] if cache else []))

    handle = model.module.register_forward_hook(note, with_kwargs=True)
    model.run(decode_steps=decode_steps)
    handle.remove()
    return found


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "gemma3_text", "deepseek_v3"])
def test_every_step_writes_into_what_was_allocated_before(model_type: str) -> None:
    (first, places), *rest = caches_of(loaded(model_type))
    assert isinstance(first, StaticCache) and len(rest) == 2
    assert all(cache is first and now == places for cache, now in rest)


def test_it_has_room_for_the_context_or_for_a_longer_run() -> None:
    assert caches_of(loaded("llama"))[0][1][0][1][2] == 64
    assert caches_of(loaded("llama"), decode_steps=70)[0][1][0][1][2] == 75
    assert loaded("llama", size="full", context_length=300).past().carried["cache"].get_max_length() == 300


def test_by_default_the_cache_is_the_models_own() -> None:
    model = loaded("llama", cache=None)
    assert all(isinstance(cache, DynamicCache) for cache, _ in caches_of(model)[1:])
    assert getattr(model.module.config, "cache_implementation", None) != "static"


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "mamba2"])
def test_numbers_are_nearly_those_of_the_dynamic_cache_and_repeat(model_type: str) -> None:
    static = loaded(model_type)
    first, again, other = static.run(), static.run(), loaded(model_type, cache="dynamic").run()
    assert all(map(torch.equal, first, again))
    for a, b in zip(first, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert torch.equal(static.decode_once(), static.decode_once())


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "gemma3_text"])
def test_a_full_size_step_has_the_kernels_of_the_dynamic_cache(model_type: str) -> None:
    static, dynamic = (trace(loaded(model_type, cache, "full", next_n=1)).kernels for cache in ("static", "dynamic"))
    assert [(k.op, k.module, k.flops, k.weights) for k in static] == [
        (k.op, k.module, k.flops, k.weights) for k in dynamic
    ]
    other = [(a, b) for a, b in zip(static, dynamic, strict=True) if a.other_bytes != b.other_bytes]
    assert all(a.op == "Add" and a.other_bytes == b.other_bytes + 8 for a, b in other)  # a counter that is a tensor


@pytest.mark.parametrize(
    ("model_type", "why"),
    [
        ("xlstm", "'StaticCache' object has no attribute 'rnn_state'"),
        ("minimax", "uses cache of its own"),
        ("rwkv", "keeps a state of its own"),
        ("deepseek_v4", "no layer of the kind 'heavily_compressed_attention'"),
        ("gpt_neo", "logits differ"),
        ("qwen4_exp_text", "allocated anew by a decode step"),
    ],
)
def test_who_can_not_is_refused_with_the_reason(model_type: str, why: str) -> None:
    with pytest.raises(RefusedError) as refused:
        loaded(model_type)
    [problem] = refused.value.problems
    assert (problem.code, problem.key) == ("no-static-cache", "model.cache")
    assert why in problem.message and "model.cache=dynamic" in problem.fix


def test_a_first_step_from_nothing_takes_the_static_cache_too() -> None:
    model = loaded("llama")
    _, state = model.stepper.step(model.module, model.stepper.prompt(3, seed=1), State())
    assert isinstance(state.carried["cache"], StaticCache)


def test_our_own_models_have_no_choice() -> None:
    mapping = {"name": "qwen3", "architecture": "qwen3", "config": {}, "cache": "static"}
    with pytest.raises(RefusedError) as refused:
        ModelSpec.from_mapping(mapping)
    assert any(p.key == "model.cache" for p in refused.value.problems)
