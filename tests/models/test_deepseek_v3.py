"""NPU-shaped DeepSeek-V3 computes what transformers computes, and launches what a served one launches."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from models import ops
from models.loading import LoadedModel, ModelSpec, load, load_deployment, load_spec
from models.problems import RefusedError
from models.rope import YarnScaling, inverse_frequencies
from models.trace import trace
from models.weights import install

from .reference import assert_compiles, assert_equals_reference, relative_error, seeded

MIB = 1 << 20
# One layer with experts of W8A8 on 128 dies: operator, module in the layer, stream, MiB of its weights.
ATTENTION = [
    ("AddRmsNorm", "input_layernorm", "main", 0),
    ("DynamicQuant", "self_attn", "main", 0),
    ("MLAProlog", "self_attn", "main", 10.5 + 36 + 3.9375 + 16),  # q_a, q_b, kv_a in int8, half of kv_b in bf16
    ("FusedInferAttentionScore", "self_attn", "main", 0),
    ("TransposeBatchMatMul", "self_attn", "main", 16),
    ("DynamicQuant", "self_attn", "main", 0),
    ("QuantBatchMatmul", "self_attn.o_proj", "main", 112),
    ("AddRmsNorm", "post_attention_layernorm", "main", 0),
]
EXPERTS = [
    ("DynamicQuant", "mlp.shared_experts", "shared_experts", 0),
    ("QuantBatchMatmul", "mlp.shared_experts.gate_up_proj", "shared_experts", 28),
    ("DequantSwigluQuant", "mlp.shared_experts", "shared_experts", 0),
    ("QuantBatchMatmul", "mlp.shared_experts.down_proj", "shared_experts", 14),
    ("Cast", "mlp", "main", 0),
    ("MatMul", "mlp.gate", "main", 7),
    ("MoeGatingTopK", "mlp", "main", 0),
    ("MoeDistributeDispatch", "mlp", "main", 0),
    ("GroupedMatmul", "mlp.experts", "main", 2 * 28),
    ("DequantSwigluQuant", "mlp.experts", "main", 0),
    ("GroupedMatmul", "mlp.experts", "main", 2 * 14),
    ("MoeDistributeCombine", "mlp", "main", 0),
    ("Add", "mlp", "main", 0),
]
DENSE = [
    ("DynamicQuant", "mlp", "main", 0),
    ("QuantBatchMatmul", "mlp.gate_up_proj", "main", 252),
    ("DequantSwigluQuant", "mlp", "main", 0),
    ("QuantBatchMatmul", "mlp.down_proj", "main", 126),
]


def reference(config: dict) -> DeepseekV3ForCausalLM:
    fields = {name: value for name, value in config.items() if name not in ("rope_theta", "rope_scaling")}
    scaling = dict(config["rope_scaling"] or {})
    rope = {"rope_type": scaling.pop("type", "default"), "rope_theta": config["rope_theta"], **scaling}
    made = DeepseekV3Config(
        **fields,
        num_key_value_heads=config["num_attention_heads"],
        rope_parameters=rope,
        attn_implementation="eager",
    )
    return seeded(DeepseekV3ForCausalLM(made))


def tiny(deployment: str = "unsharded", config: dict[str, Any] | None = None, **fields: object) -> LoadedModel:
    spec = load_spec("deepseek_v3")
    spec = replace(spec, tiny={**spec.tiny, **(config or {})})
    return load(spec, load_deployment(deployment, **fields), "ge_graph", "tiny")


def dimensions(loaded: LoadedModel) -> dict:
    return {**loaded.spec.config, **loaded.spec.tiny}


def full(deployment: str, layers: int = 5) -> LoadedModel:
    return load(load_spec("deepseek_v3", num_hidden_layers=layers), load_deployment(deployment), "ge_graph", "full")


def test_prefill_and_eight_decode_steps_equal_transformers():
    ours = tiny()
    assert_equals_reference(ours, reference(dimensions(ours)))


def test_without_rope_scaling_too():
    ours = tiny(config={"rope_scaling": None})
    assert_equals_reference(ours, reference(dimensions(ours)), 2)


def test_what_the_comparison_would_see():
    """Another temperature of the scores, and a bias that no longer steers the choice."""
    ours = tiny()
    model = reference(dimensions(ours))
    ours.module.model.layers[1].self_attn.softmax_scale *= 1.1
    with pytest.raises(AssertionError):
        assert_equals_reference(ours, model, 0)
    ours = tiny()
    model.model.layers[1].mlp.gate.e_score_correction_bias += torch.linspace(-1, 1, 16)
    assert_equals_reference(ours, model, 0)
    ours.module.model.layers[1].mlp.gate.e_score_correction_bias.zero_()
    assert (ours.run(decode_steps=0)[0] - tiny_with(model).run(decode_steps=0)[0]).abs().max() > 1e-3


def tiny_with(model: DeepseekV3ForCausalLM) -> LoadedModel:
    loaded = tiny()
    assert_equals_reference(loaded, model, 0)
    return loaded


def test_int8_stays_close_to_float():
    exact, rough = tiny(), tiny(quant="w8a8")
    stored = dict(rough.module.named_parameters())
    for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"):
        assert stored[f"model.layers.2.self_attn.{name}.weight"].dtype is torch.int8
    assert stored["model.layers.2.mlp.gate.weight"].dtype is torch.float32
    # An expert may change for a token near the border, so compare most of the tokens.
    error = relative_error(exact, rough, reference(dimensions(exact)))
    assert 1e-5 < error.median() < 0.05


@pytest.mark.parametrize("deployment", ["unsharded", "deepseek_a3_ep16"])
def test_decode_compiles_in_one_graph_to_the_same_numbers(deployment):
    assert_compiles(tiny(deployment, {"num_hidden_layers": 2}))


def test_a_served_layer_launches_these_kernels():
    work = trace(full("deepseek_a3_ep128"))
    for i, listed in ((2, ATTENTION + DENSE), (4, ATTENTION + EXPERTS)):
        kernels = [k for k in work.kernels if k.layer == i]
        weights = [[w.stored_bytes for w in k.weights if w.stored_bytes > MIB // 2] for k in kernels]
        prefix = f"model.layers.{i}."
        found = [
            (k.op, k.module.removeprefix(prefix), k.stream, sum(own) / MIB)
            for k, own in zip(kernels, weights, strict=True)
        ]
        assert found == listed


def test_the_shared_expert_runs_beside_the_routed_ones():
    work = trace(full("deepseek_a3_ep128"))
    layer = {(k.op, k.module.removeprefix("model.layers.4.")): k.index for k in work.kernels if k.layer == 4}
    down = layer["QuantBatchMatmul", "mlp.shared_experts.down_proj"]
    combine = layer["MoeDistributeCombine", "mlp"]
    assert not work.is_ancestor(down, combine) and not work.is_ancestor(layer["MatMul", "mlp.gate"], down)
    assert {down, combine} <= work.ancestors(layer["Add", "mlp"])


def test_all_61_layers_hold_671_billion_parameters():
    module = load(load_spec("deepseek_v3"), load_deployment("unsharded"), "ge_graph", "full").module
    assert len(module.model.layers) == 61
    assert sum(p.numel() for p in module.parameters()) == pytest.approx(671e9, rel=0.001)
    r1 = load_spec("deepseek_r1")
    assert (r1.architecture, r1.config, r1.tiny) == ("deepseek_v3", load_spec("deepseek_v3").config, r1.tiny)


@pytest.mark.parametrize(
    "config, key",
    [
        ({"n_group": 7}, "n_group"),
        ({"n_group": 256}, "n_group"),
        ({"topk_group": 9}, "topk_group"),
        ({"topk_group": 1, "num_experts_per_tok": 33}, "num_experts_per_tok"),
        ({"norm_topk_prob": False}, "norm_topk_prob"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim"),
        ({"rope_scaling": {"factor": 40.0, "type": "linear"}}, "rope_scaling.type"),
    ],
)
def test_impossible_dimensions_are_refused(config, key):
    with pytest.raises(RefusedError) as refused:
        load(load_spec("deepseek_v3", **config), load_deployment("unsharded"), "ge_graph", "full")
    assert f"model.config.{key}" in {p.key for p in refused.value.problems}


def test_a_model_without_dense_layers_and_a_role_it_does_not_have():
    mapping = {"name": "x", "architecture": "deepseek_v3", "config": dict(load_spec("deepseek_v3").config)}
    mapping["config"]["first_k_dense_replace"] = 0
    assert ModelSpec.from_mapping(mapping).config["first_k_dense_replace"] == 0
    with pytest.raises(RefusedError, match="role"):
        load(load_spec("deepseek_v3"), load_deployment("unsharded", role="ffn"), "ge_graph", "full")


# --------------------------------------------------------------------------------------------------------------- ops


@given(
    st.integers(1, 5), st.integers(1, 4), st.integers(2, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 99)
)
def test_experts_come_from_the_best_groups(tokens, groups, in_group, top_groups, top_k, seed):
    top_groups = min(top_groups, groups)
    top_k = min(top_k, top_groups * in_group)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, groups * in_group, generator=generator)
    bias = 0.3 * torch.randn(groups * in_group, generator=generator)
    ids, weights = ops.moe_gating_grouped_top_k(logits, bias, top_k, groups, top_groups, 2.5)
    assert ids.dtype is torch.int32
    for token in range(tokens):
        scores = [float(s) for s in logits[token].sigmoid()]
        choice = [s + float(b) for s, b in zip(scores, bias, strict=True)]
        by_group = [sorted(choice[g * in_group : (g + 1) * in_group])[-2:] for g in range(groups)]
        best = sorted(range(groups), key=lambda g, by_group=by_group: -sum(by_group[g]))[:top_groups]
        allowed = [e for e in range(len(choice)) if e // in_group in best]
        expected = sorted(allowed, key=lambda e, choice=choice: -choice[e])[:top_k]
        assert set(ids[token].tolist()) == set(expected)
        total = sum(scores[e] for e in expected)
        for e, weight in zip(ids[token].tolist(), weights[token], strict=True):
            assert float(weight) == pytest.approx(2.5 * scores[e] / total, rel=1e-4)


@settings(deadline=None)
@given(st.sampled_from([8, 32, 64]), st.floats(1.5, 60), st.sampled_from([64, 4096]), st.sampled_from([1e4, 1e6]))
def test_yarn_divides_slow_frequencies_only(dim, factor, length, theta):
    plain = inverse_frequencies(dim, theta)
    scaled = inverse_frequencies(dim, theta, YarnScaling(factor, length))
    assert torch.allclose(inverse_frequencies(dim, theta, YarnScaling(1.0, length)), plain)
    assert ((scaled <= plain * 1.0001) & (scaled >= plain / factor * 0.9999)).all()
    rotations = length * plain / (2 * torch.pi)
    slow = rotations < 0.5
    assert torch.allclose(scaled[slow], plain[slow] / factor)


def test_weights_of_another_layout_are_quantised_along_their_inputs():
    rough = tiny(quant="w8a8")
    weights = {name: torch.randn(p.shape) for name, p in tiny().module.named_parameters()}
    install(rough.module, weights)
    name = "model.layers.0.self_attn.q_b_proj.weight"
    stored = dict(rough.module.named_parameters())
    assert stored[f"{name}_scale"].shape == (weights[name].shape[1],)
    back = stored[name] * stored[f"{name}_scale"]
    assert (back - weights[name]).abs().max() < weights[name].abs().max() / 100
