"""NPU-shaped LongCat-Flash computes what transformers computes, from the same weights."""

from dataclasses import replace

import pytest
import torch
from transformers import LongcatFlashConfig, LongcatFlashForCausalLM

from models.convert import from_transformers
from models.loading import LoadedModel, load, load_deployment, load_spec
from models.weights import install

from .reference import assert_compiles, reference_outputs, seeded


def reference(config: dict) -> LongcatFlashForCausalLM:
    fields = {name: value for name, value in config.items() if name != "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    made = LongcatFlashConfig(
        **fields, head_dim=config["qk_rope_head_dim"], rope_parameters=rope, attn_implementation="eager"
    )
    return seeded(LongcatFlashForCausalLM(made))


def tiny(deployment: str = "unsharded", **fields: object) -> LoadedModel:
    return load(load_spec("longcat_flash"), load_deployment(deployment, **fields), "ge_graph", "tiny")


def with_weights_of(loaded: LoadedModel, model: torch.nn.Module) -> LoadedModel:
    install(loaded.module, from_transformers("longcat_flash", model.state_dict(), loaded.module.config))
    return loaded


def test_prefill_and_eight_decode_steps_equal_transformers():
    ours = tiny()
    model = reference({**ours.spec.config, **ours.spec.tiny})
    outputs = with_weights_of(ours, model).run(decode_steps=8)
    for step, (mine, expected) in enumerate(zip(outputs, reference_outputs(model, 8), strict=True)):
        assert (mine - expected).abs().max() < 1e-4, step
    assert outputs[-1].std() > 0.1


def test_a_wrong_conversion_is_noticed():
    ours = tiny()
    model = reference({**ours.spec.config, **ours.spec.tiny})
    state = from_transformers("longcat_flash", model.state_dict(), ours.module.config)
    name = "model.layers.2.mlp.experts.w2_weight"
    install(ours.module, {**state, name: state[name].flip(0)})
    assert (ours.run(decode_steps=0)[0] - reference_outputs(model, 0)[0]).abs().max() > 1e-3


def test_missing_weights_are_all_named():
    with pytest.raises(ValueError, match=r"lm_head.weight.*model.norm.weight|model.norm.weight.*lm_head.weight"):
        install(tiny().module, {})


def test_the_ffn_side_takes_its_weights_from_the_whole_model():
    ffn = tiny("longcat_a3_ep32_ffn", quant="w16a16", moe_ep_size=1)
    model = reference({**ffn.spec.config, **ffn.spec.tiny})
    with_weights_of(ffn, model)
    hidden = torch.randn(6, 64)
    with torch.no_grad():
        expected = model.model.layers[1].mlp(hidden)
        mine = ffn.module.model.layers[1].mlp(hidden, False)
    assert (mine - expected).abs().max() < 1e-5


def test_int8_stays_close_to_float():
    served = {"moe_ep_size": 1, "dense_tp_size": 1, "o_proj_tp_size": 1, "lmhead_tp_size": 1, "next_n": 0}
    plain, quantised = tiny(), tiny("longcat_a3_ep128", **served)
    model = reference({**plain.spec.config, **plain.spec.tiny})
    exact = with_weights_of(plain, model).run(decode_steps=0)[0]
    rough = with_weights_of(quantised, model).run(decode_steps=0)[0]
    stored = dict(quantised.module.named_parameters())
    assert stored["model.layers.0.mlps.0.down_proj.weight"].dtype is torch.int8
    assert stored["model.layers.0.mlp.experts.w13_weight"].dtype is torch.int8
    assert stored["model.layers.0.self_attn.0.q_a_proj.weight"].dtype is torch.float32
    # An expert may change for a token near the border, so compare most of the tokens.
    error = (exact - rough).norm(dim=-1) / exact.norm(dim=-1)
    assert 1e-5 < error.median() < 0.05


@pytest.mark.parametrize("deployment", ["unsharded", "longcat_a3_ep128", "longcat_a3_ep32_ffn"])
def test_decode_compiles_in_one_graph_to_the_same_numbers(deployment):
    spec = load_spec("longcat_flash")
    spec = replace(spec, tiny={**spec.tiny, "num_layers": 1})
    assert_compiles(load(spec, load_deployment(deployment), "ge_graph", "tiny"))
