"""The specification's size formulas and tables, against the bytes of the models' own parameters."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.loading import load, load_deployment, load_spec
from models.sizes import gmm1_prefetch_size, gmm2_prefetch_size, theoretical_size

MIB = 1 << 20


def local_bytes(model: str, deployment: str, fields: dict[str, Any] | None = None, **config: Any) -> dict[str, int]:
    loaded = load(load_spec(model, **config), load_deployment(deployment, **(fields or {})), "ge_graph", "full")
    return {name: p.numel() * p.element_size() for name, p in loaded.module.named_parameters()}


def test_the_longcat_flash_table():
    sizes = local_bytes("longcat_flash", "unsharded", num_layers=1)
    layer = "model.layers.0."
    assert sizes[layer + "mlp.router.classifier.weight"] == 18 * MIB
    for attention in ("self_attn.0.", "self_attn.1."):
        assert sizes[layer + attention + "q_a_proj.weight"] == 18 * MIB
        assert sizes[layer + attention + "q_b_proj.weight"] == 36 * MIB
        assert sizes[layer + attention + "kv_a_proj_with_mqa.weight"] == 6.75 * MIB
        assert sizes[layer + attention + "kv_b_proj_w_k"] == sizes[layer + attention + "kv_b_proj_w_v"] == 8 * MIB


def test_the_table_follows_the_dimensions():
    sizes = local_bytes("longcat_flash", "unsharded", num_layers=1, hidden_size=4096)
    layer = "model.layers.0."
    assert sizes[layer + "mlp.router.classifier.weight"] == sizes[layer + "self_attn.0.q_a_proj.weight"] == 12 * MIB
    assert sizes[layer + "self_attn.0.q_b_proj.weight"] == 36 * MIB
    assert sizes[layer + "self_attn.0.kv_a_proj_with_mqa.weight"] == 4.5 * MIB


def test_the_w8a8_deployment_has_the_sizes_of_the_measured_kernels():
    sizes = local_bytes("longcat_flash", "longcat_a3_ep128", num_layers=1)
    layer = "model.layers.0."
    assert sizes[layer + "mlps.0.gate_up_proj.weight"] == 18 * MIB
    assert sizes[layer + "mlps.0.down_proj.weight"] == 9 * MIB
    assert sizes[layer + "mlp.router.classifier.weight"] == 18 * MIB  # the router and MLA are not quantised
    assert sizes[layer + "self_attn.0.q_a_proj.weight"] == 18 * MIB
    assert sizes[layer + "self_attn.0.o_proj.weight"] == 64 * 128 * 6144 * 2 // 8


@pytest.mark.parametrize(
    ("weight", "shape"),
    [
        ("self_attn.qkv_proj", (4096 + 2 * 1024, 4096)),
        ("self_attn.o_proj", (4096, 4096)),
        ("mlp.gate_up_proj", (2 * 12288, 4096)),
        ("mlp.down_proj", (4096, 12288)),
    ],
)
@pytest.mark.parametrize(("quant", "dtype"), [("w16a16", "bf16"), ("w8a8", "int8")])
def test_qwen3_weights_have_their_theoretical_size(weight, shape, quant, dtype):
    sizes = local_bytes("qwen3", "qwen3_a2_tp1", {"quant": quant}, num_hidden_layers=1)
    assert sizes[f"model.layers.0.{weight}.weight"] == theoretical_size(shape, dtype)


powers = st.sampled_from([1, 2, 4])


@settings(max_examples=25, deadline=None)
@given(
    hidden=st.integers(1, 40).map(lambda n: 8 * n),
    inner=st.integers(1, 40).map(lambda n: 8 * n),
    experts=st.integers(1, 6).map(lambda n: 4 * n),
    moe_tp=powers,
    moe_ep=powers,
    quant=st.sampled_from(["w16a16", "w8a8"]),
    role=st.sampled_from(["all", "ffn"]),
)
def test_both_gmm_formulas_are_the_expert_stacks_of_the_model(hidden, inner, experts, moe_tp, moe_ep, quant, role):
    fields = {"world_size": 16, "moe_tp_size": moe_tp, "moe_ep_size": moe_ep, "quant": quant, "role": role}
    dims = {"hidden_size": hidden, "expert_ffn_hidden_size": inner, "n_routed_experts": experts, "moe_topk": 2}
    sizes = local_bytes("longcat_flash", "unsharded", fields, num_layers=1, **dims)
    formula = (hidden, inner, quant, moe_tp, experts // moe_ep)
    stack = "model.layers.0.mlp.experts."
    assert sizes[stack + "w13_weight"] == 2 * gmm1_prefetch_size(*formula)  # the formula holds the 50 %
    assert sizes[stack + "w2_weight"] == gmm2_prefetch_size(*formula)


@given(*[st.integers(1, 5000)] * 2, st.integers(1, 16), st.integers(1, 600))
def test_the_formulas_divide_in_the_specification_s_order(hidden, inner, moe_tp, experts):
    assert gmm1_prefetch_size(hidden, inner, "w8a8", moe_tp, experts) == (
        hidden * inner * 2 * 1 // moe_tp * experts // 2
    )
    assert gmm2_prefetch_size(hidden, inner, "w16a16", moe_tp, experts) == hidden * inner * 2 // moe_tp * experts


@settings(max_examples=25, deadline=None)
@given(
    hidden=st.integers(1, 40).map(lambda n: 8 * n),
    ffn=st.integers(1, 40).map(lambda n: 8 * n),
    q_rank=st.integers(1, 99),
    kv_rank=st.integers(1, 99),
    dense_tp=st.sampled_from([1, 2, 8]),
    quant=st.sampled_from(["w16a16", "w8a8"]),
)
def test_dense_and_attention_weights_have_their_theoretical_sizes(hidden, ffn, q_rank, kv_rank, dense_tp, quant):
    fields = {"world_size": 8, "dense_tp_size": dense_tp, "quant": quant}
    dims = {"hidden_size": hidden, "ffn_hidden_size": ffn, "q_lora_rank": q_rank, "kv_lora_rank": kv_rank}
    sizes = local_bytes("longcat_flash", "unsharded", fields, num_layers=1, **dims)
    layer, dtype = "model.layers.0.", "int8" if quant == "w8a8" else "bf16"
    expected = {
        "mlps.1.gate_up_proj": theoretical_size((hidden, 2 * ffn // dense_tp), dtype),
        "mlps.1.down_proj": theoretical_size((ffn // dense_tp, hidden), dtype),
        "self_attn.1.q_a_proj": theoretical_size((hidden, q_rank), "bf16"),
        "self_attn.1.q_b_proj": theoretical_size((q_rank, 64 * 192), "bf16"),
        "self_attn.1.kv_a_proj_with_mqa": theoretical_size((hidden, kv_rank + 64), "bf16"),
        "mlp.router.classifier": theoretical_size((hidden, 768), "fp32"),
    }
    assert {name: sizes[f"{layer}{name}.weight"] for name in expected} == expected
