"""NPU-shaped Qwen3-MoE computes what transformers computes, and launches what a served one launches."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from models import ops
from models.loading import LoadedModel, load, load_deployment, load_spec
from models.problems import RefusedError
from models.trace import trace

from .reference import assert_compiles, assert_equals_reference, relative_error, seeded

MIB = 1 << 20
# One layer in bf16, heads over 4 dies and experts over 32: operator, module in the layer, MiB of its weights.
LAYER = [
    ("AddRmsNorm", "input_layernorm", 0),
    ("AllGather", "self_attn", 0),
    ("MatMul", "self_attn.qkv_proj", 18),
    ("SplitV", "self_attn", 0),
    ("RmsNorm", "self_attn.q_norm", 0),
    ("RmsNorm", "self_attn.k_norm", 0),
    ("ApplyRotaryPosEmb", "self_attn", 0),
    ("ScatterPaKvCache", "self_attn", 0),
    ("FusedInferAttentionScore", "self_attn", 0),
    ("MatMul", "self_attn.o_proj", 16),
    ("ReduceScatter", "self_attn", 0),
    ("AddRmsNorm", "post_attention_layernorm", 0),
    ("Cast", "mlp", 0),
    ("MatMul", "mlp.gate", 2),
    ("MoeGatingTopKSoftmax", "mlp", 0),
    ("ReduceSum", "mlp", 0),
    ("RealDiv", "mlp", 0),
    ("MoeDistributeDispatch", "mlp", 0),
    ("GroupedMatmul", "mlp.experts", 4 * 24),  # 4 local experts
    ("SwiGLU", "mlp.experts", 0),
    ("GroupedMatmul", "mlp.experts", 4 * 12),
    ("MoeDistributeCombine", "mlp", 0),
]


def reference(config: dict) -> Qwen3MoeForCausalLM:
    fields = {name: value for name, value in config.items() if name != "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    return seeded(Qwen3MoeForCausalLM(Qwen3MoeConfig(**fields, rope_parameters=rope, attn_implementation="eager")))


def tiny(deployment: str = "unsharded", config: dict[str, Any] | None = None, **fields: object) -> LoadedModel:
    spec = load_spec("qwen3_moe")
    spec = replace(spec, tiny={**spec.tiny, **(config or {})})
    return load(spec, load_deployment(deployment, **fields), "ge_graph", "tiny")


@pytest.mark.parametrize("norm_topk_prob, decode_steps", [(True, 8), (False, 0)])
def test_prefill_and_eight_decode_steps_equal_transformers(norm_topk_prob, decode_steps):
    ours = tiny(config={"norm_topk_prob": norm_topk_prob})
    assert_equals_reference(ours, reference({**ours.spec.config, **ours.spec.tiny}), decode_steps)


def test_what_the_comparison_would_see():
    ours = tiny(config={"norm_topk_prob": False})
    with pytest.raises(AssertionError):
        assert_equals_reference(ours, reference({**ours.spec.config, **tiny().spec.tiny}), 0)


def test_int8_stays_close_to_float():
    exact, rough = tiny(), tiny(quant="w8a8")
    stored = dict(rough.module.named_parameters())
    for name in ("self_attn.qkv_proj.weight", "self_attn.o_proj.weight", "mlp.experts.w13_weight"):
        assert stored[f"model.layers.2.{name}"].dtype is torch.int8
    assert stored["model.layers.2.mlp.gate.weight"].dtype is torch.float32
    error = relative_error(exact, rough, reference({**exact.spec.config, **exact.spec.tiny}))
    assert 1e-5 < error.median() < 0.05


@pytest.mark.parametrize("deployment", ["unsharded", "qwen3_moe_a3_tp4_ep32"])
def test_decode_compiles_in_one_graph_to_the_same_numbers(deployment):
    assert_compiles(tiny(deployment, {"num_hidden_layers": 1}))


def test_a_served_layer_launches_these_kernels():
    served = load_deployment("qwen3_moe_a3_tp4_ep32")
    work = trace(load(load_spec("qwen3_moe", num_hidden_layers=2), served, "ge_graph", "full"))
    kernels = [k for k in work.kernels if k.layer == 1]
    weights = [[w.stored_bytes for w in k.weights if w.stored_bytes > MIB // 2] for k in kernels]
    prefix = "model.layers.1."
    found = [(k.op, k.module.removeprefix(prefix), sum(own) / MIB) for k, own in zip(kernels, weights, strict=True)]
    assert found == LAYER
    assert {(k.stream, k.cores) for k in kernels} == {("main", 0)}
    attention = next(k for k in kernels if k.op == "FusedInferAttentionScore")
    context = 4352  # four sequences, one of the four heads of keys and values
    assert attention.other_bytes == pytest.approx(4 * context * 2 * 128 * 2, rel=0.02)


def test_94_layers_hold_235_billion_parameters():
    module = load(load_spec("qwen3_moe"), load_deployment("unsharded"), "ge_graph", "full").module
    assert sum(p.numel() for p in module.parameters()) == pytest.approx(235e9, rel=0.001)


@pytest.mark.parametrize(
    "config, fields, key",
    [
        ({"num_experts_per_tok": 129}, {}, "model.config.num_experts_per_tok"),
        ({"num_key_value_heads": 3}, {}, "model.config.num_key_value_heads"),
        ({}, {"world_size": 2, "o_proj_tp_size": 2}, "deployment.o_proj_tp_size"),
        ({}, {"world_size": 2, "dense_tp_size": 2}, "deployment.dense_tp_size"),
        ({}, {"world_size": 8, "attn_tp_size": 8, "o_proj_tp_size": 8}, "deployment.attn_tp_size"),
        ({}, {"role": "attention"}, "deployment.role"),
        ({}, {"context_length": 50000}, "deployment.context_length"),
    ],
)
def test_impossible_settings_are_refused(config, fields, key):
    with pytest.raises(RefusedError) as refused:
        load(load_spec("qwen3_moe", **config), load_deployment("unsharded", **fields), "ge_graph", "full")
    assert key in {p.key for p in refused.value.problems}


def test_softmax_gating_takes_the_most_likely_experts():
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    ids, weights = ops.moe_gating_top_k_softmax(logits, 2)
    assert ids.tolist() == [[1, 2]] and ids.dtype is torch.int32
    assert torch.allclose(weights, logits.softmax(-1)[:, [1, 2]])


def test_caches_are_written_by_one_kernel_or_in_npugraph_ex_by_two_in_place():
    def writes(exe_mode):
        model = load(load_spec("qwen3_moe"), load_deployment("unsharded"), exe_mode, "tiny")
        kernels = [k for k in trace(model).kernels if k.op.startswith("Scatter") and k.layer == 0]
        return [k.op for k in kernels], sum(k.other_bytes for k in kernels)

    one, bytes_of_one = writes("ge_graph")
    two, bytes_of_two = writes("npugraph_ex")
    assert (one, two) == (["ScatterPaKvCache"], ["ScatterNdUpdate", "ScatterNdUpdate"])
    assert bytes_of_one == bytes_of_two > 0
