"""NPU-shaped Qwen3 computes what transformers computes, from the same weights."""

from dataclasses import replace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from models.convert import from_transformers
from models.loading import LoadedModel, load, load_deployment, load_spec
from models.weights import install

from .reference import assert_compiles, reference_outputs, seeded


def reference(config: dict) -> Qwen3ForCausalLM:
    fields = {name: value for name, value in config.items() if name != "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    return seeded(Qwen3ForCausalLM(Qwen3Config(**fields, rope_parameters=rope, attn_implementation="eager")))


def tiny(**fields: object) -> LoadedModel:
    return load(load_spec("qwen3"), load_deployment("qwen3_a2_tp1", **fields), "ge_graph", "tiny")


def test_prefill_and_eight_decode_steps_equal_transformers():
    ours = tiny()
    model = reference({**ours.spec.config, **ours.spec.tiny})
    install(ours.module, from_transformers("qwen3", model.state_dict(), ours.module.config))
    outputs = ours.run(decode_steps=8)
    for step, (mine, expected) in enumerate(zip(outputs, reference_outputs(model, 8), strict=True)):
        assert (mine - expected).abs().max() < 1e-4, step
    assert outputs[-1].std() > 0.1


def test_int8_stays_close_to_float():
    exact, rough = tiny(), tiny(quant="w8a8")
    model = reference({**exact.spec.config, **exact.spec.tiny})
    outputs = []
    for loaded in (exact, rough):
        install(loaded.module, from_transformers("qwen3", model.state_dict(), loaded.module.config))
        outputs.append(loaded.run(decode_steps=0)[0])
    error = (outputs[0] - outputs[1]).norm(dim=-1) / outputs[0].norm(dim=-1)
    assert 1e-5 < error.max() < 0.05


@pytest.mark.parametrize("quant", ["w16a16", "w8a8"])
def test_decode_compiles_in_one_graph_to_the_same_numbers(quant):
    spec = load_spec("qwen3")
    spec = replace(spec, tiny={**spec.tiny, "num_hidden_layers": 1})
    assert_compiles(load(spec, load_deployment("qwen3_a2_tp1", quant=quant), "ge_graph", "tiny"))


def test_speculative_tokens_see_each_other_causally():
    one, two = tiny(), tiny(next_n=1)
    prompt = torch.arange(2 * 6) % 160
    outputs = []
    for loaded, lengths in ((one, [6]), (two, [4, 2])):
        caches, past = loaded._new_caches(64), 0
        by_sequence = prompt.view(2, 6)
        for tokens in lengths:
            inputs = by_sequence[:, past : past + tokens].flatten()
            out = loaded._step(loaded.module, inputs, caches, past == 0, past, tokens, 64)
            past += tokens
        outputs.append(out.view(2, -1, 160)[:, -2:])
    assert torch.allclose(outputs[0], outputs[1], atol=1e-5)
