"""The traced decode steps of the real architectures, full size, against lists written down by hand."""

import time

import pytest

from models.loading import load, load_deployment, load_spec
from models.structure import decoder_layers
from models.trace import trace

MIB = 1 << 20
SMALL = MIB // 2  # norms, scales and biases are below this
# One layer of LongCat-Flash W8A8 on 128 dies: operator, module in the layer, MiB of its weights as served.
# q_a 18, q_b 36, kv_a 6.75 and the key half of kv_b 8 MiB are one fused kernel; dense MLPs and o_proj are cut by 8.
ATTENTION = [
    ("AddRmsNorm", "input_layernorm.{a}", 0),
    ("MLAProlog", "self_attn.{a}", 18 + 36 + 6.75 + 8),
    ("FusedInferAttentionScore", "self_attn.{a}", 0),
    ("TransposeBatchMatMul", "self_attn.{a}", 8),
    ("Transpose", "self_attn.{a}", 0),
    ("AllToAll", "self_attn.{a}", 0),
    ("MatMul", "self_attn.{a}.o_proj", 12),
    ("ReduceScatter", "self_attn.{a}", 0),
    ("AddRmsNorm", "post_attention_layernorm.{a}", 0),
]
EXPERTS = [
    ("Cast", "mlp.router", 0),
    ("MatMul", "mlp.router.classifier", 18),
    ("MoeGatingTopK", "mlp.router", 0),
    ("MoeDistributeDispatch", "mlp", 0),
    ("GroupedMatmul", "mlp.experts", 4 * 24),  # 4 local experts
    ("DequantSwigluQuant", "mlp.experts", 0),
    ("GroupedMatmul", "mlp.experts", 4 * 12),
    ("MoeDistributeCombine", "mlp", 0),
]
DENSE = [
    ("AllGather", "mlps.{a}", 0),
    ("DynamicQuant", "mlps.{a}", 0),
    ("QuantBatchMatmul", "mlps.{a}.gate_up_proj", 18),
    ("DequantSwigluQuant", "mlps.{a}", 0),
    ("QuantBatchMatmul", "mlps.{a}.down_proj", 9),
    ("ReduceScatter", "mlps.{a}", 0),
]
LAYER = [
    *(
        (op, module.format(a=a), mib)
        for a, block in ((0, ATTENTION), (0, EXPERTS), (0, DENSE))
        for op, module, mib in block
    ),
    *((op, module.format(a=1), mib) for block in (ATTENTION, DENSE) for op, module, mib in block),
    ("Add", "", 0),
]


def loaded_model(model, deployment, size="full", **config):
    return load(load_spec(model, **config), load_deployment(deployment), "ge_graph", size)


@pytest.fixture(scope="module")
def longcat():
    """Full size, all 28 layers, with the seconds that the trace took."""
    loaded = loaded_model("longcat_flash", "longcat_a3_ep128")
    start = time.process_time()  # not the wall's: other tests may run beside this one
    work = trace(loaded)
    return loaded, work, time.process_time() - start


def in_layer(work, i):
    return [k for k in work.kernels if k.layer == i]


def of(work, i, module, op=None):
    """The one kernel of a module in layer i."""
    (index,) = (k.index for k in in_layer(work, i) if k.module == f"model.layers.{i}.{module}" and op in (None, k.op))
    return index


def test_a_full_size_trace_takes_less_than_four_seconds(longcat):
    _, work, seconds = longcat
    assert seconds < 4
    assert len(work.kernels) == 28 * 39 + 8  # three look-ups before, final norm and four kernels of the head after
    assert (work.layers, work.tokens) == (28, pytest.approx(4 * 1.9))


@pytest.mark.parametrize("i", [0, 1, 27])
def test_a_longcat_layer_is_the_list_of_kernels_that_is_served(longcat, i):
    _, work, _ = longcat
    traced = [
        (
            "AddRmsNorm" if k.op == "RmsNorm" and i == 0 else k.op,  # the first layer has no residual to add
            k.module.removeprefix(f"model.layers.{i}").removeprefix("."),
            sum(w.stored_bytes for w in k.weights if w.stored_bytes > SMALL) / MIB,
        )
        for k in in_layer(work, i)
    ]
    assert traced == LAYER


def test_the_experts_have_their_own_stream_and_both_have_core_limits(longcat):
    _, work, _ = longcat
    alone, beside = len(ATTENTION), len(EXPERTS)
    expected = [("main", 0)] * alone + [("moe", 8)] * beside
    expected += [("main", 16)] * (len(LAYER) - alone - beside - 1) + [("main", 0)]  # the join has the die again
    assert [(k.stream, k.cores) for k in in_layer(work, 3)] == expected


def test_operations_and_bytes_by_formula(longcat):
    """8 tokens a die, 64 in a group of 8 dies; 128 x 8 x 12 / 768 x 4 = 64 expert rows are expected on this die."""
    _, work, _ = longcat
    kernel = {(k.module.removeprefix("model.layers.5."), k.op): k for k in in_layer(work, 5)}
    gate_up = kernel["mlps.0.gate_up_proj", "QuantBatchMatmul"]
    assert (gate_up.flops, gate_up.flops_dtype) == (2 * 64 * 6144 * 3072, "int8")
    router = kernel["mlp.router.classifier", "MatMul"]
    assert (router.flops, router.flops_dtype) == (2 * 8 * 6144 * 768, "fp32")
    first, second = (k for k in in_layer(work, 5) if k.op == "GroupedMatmul")
    assert first.flops == pytest.approx(2 * 64 * 6144 * 4096) and second.flops == pytest.approx(2 * 64 * 2048 * 6144)
    (read,) = first.weights
    assert read.share == pytest.approx(1 - (1 - 12 / 768) ** 1024) and read.share_low < read.share
    # The same rows in all kernels of the experts: not the 96 of the loopback, which sends picks of zero experts too.
    assert kernel["mlp.experts", "DequantSwigluQuant"].other_bytes == 64 * (4096 * 4 + 2048 + 2 * 4)
    assert first.other_bytes == 64 * (6144 + 4096 * 4) and second.other_bytes == 64 * (2048 + 6144 * 2)
    assert kernel["mlps.0", "DequantSwigluQuant"].other_bytes == 64 * (3072 * 4 + 1536 + 2 * 4)
    attention = kernel["self_attn.0", "FusedInferAttentionScore"]
    assert attention.flops == 2 * 8 * 64 * 4096 * (576 + 512)
    cache = 4 * 4096 * 576 * 2
    assert cache <= attention.other_bytes < cache + 2 * MIB
    for k in in_layer(work, 5):
        assert (k.comm_bytes > 0) == (k.engine == "communication") == (k.comm_ranks > 1)


def test_data_flow_allows_what_the_recipes_need_and_nothing_else(longcat):
    _, work, _ = longcat
    for i in (0, 13, 26):
        router = of(work, i, "mlp.router.classifier")
        o_proj = [of(work, i, f"self_attn.{a}.o_proj") for a in (0, 1)]
        gate_up = [of(work, i, f"mlps.{a}.gate_up_proj") for a in (0, 1)]
        down = [of(work, i, f"mlps.{a}.down_proj") for a in (0, 1)]
        prolog = [of(work, i, f"self_attn.{a}", "MLAProlog") for a in (0, 1)]
        combine = of(work, i, "mlp", "MoeDistributeCombine")
        assert work.is_ancestor(o_proj[0], router) and work.is_ancestor(o_proj[0], gate_up[0])
        assert work.is_ancestor(gate_up[0], prolog[1]) and work.is_ancestor(o_proj[1], gate_up[1])
        assert work.is_ancestor(down[1], of(work, i + 1, "self_attn.0", "MLAProlog"))
        assert work.is_ancestor(combine, of(work, i + 1, "mlp.router.classifier"))
        # The two branches meet only at the end of the layer.
        assert not any(
            work.is_ancestor(router, k) or work.is_ancestor(combine, k) for k in (*gate_up, *down, prolog[1])
        )
        assert not any(work.is_ancestor(k, combine) for k in (*gate_up, *down, prolog[1]))


def test_module_calls_say_which_weights_go_into_fused_kernels(longcat):
    _, work, _ = longcat
    assert not [fqn for fqn in work.calls if fqn.endswith(("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa"))]
    assert all(len(calls) == 1 for calls in work.calls.values())
    (experts,) = work.calls["model.layers.2.mlp.experts"]
    assert work.kernels[experts.output_kernel].op == "GroupedMatmul"
    assert work.kernels[experts.input_kernel].op == "MoeDistributeDispatch"
    (down,) = work.calls["model.layers.2.mlps.0.down_proj"]
    (gate_up,) = work.calls["model.layers.2.mlps.0.gate_up_proj"]
    assert work.kernels[gate_up.input_kernel].op == "DynamicQuant"
    assert gate_up.exit < down.enter
    assert work.kernels[work.calls["model"][0].output_kernel].module == "model.norm"


def test_every_parameter_is_read_and_nothing_else_is(longcat):
    loaded, work, _ = longcat
    assert {w.weight for k in work.kernels for w in k.weights} == set(work.weight_bytes)
    assert work.weight_bytes == {n: p.numel() * p.element_size() for n, p in loaded.module.named_parameters()}


def test_layers_repeat(longcat):
    """From the second on, layers have the same kernels, fed by the same relative positions."""
    _, work, _ = longcat

    def shape(i):
        kernels = in_layer(work, i)
        own = [
            (
                k.op,
                k.flops,
                k.other_bytes,
                [w.stored_bytes for w in k.weights],
                [k.index - j for j in k.inputs if j > 2],
            )
            for k in kernels
        ]
        return own

    assert all(shape(i) == shape(2) for i in range(2, 28))


@pytest.mark.parametrize("model, deployment", [("longcat_flash", "longcat_a3_ep128"), ("qwen3", "qwen3_a2_tp1")])
def test_the_tiny_model_has_the_same_structure(model, deployment):
    """Same kernels, streams and data flow on CPU with numbers as at full size on meta."""
    tiny = loaded_model(model, deployment, "tiny")
    work = trace(tiny)
    layers = {"longcat_flash": "num_layers", "qwen3": "num_hidden_layers"}[model]
    full = trace(loaded_model(model, deployment, **{layers: work.layers}))
    structure = [
        [(k.op, k.module, k.engine, k.stream, k.cores, k.inputs, [w.weight for w in k.weights]) for k in w.kernels]
        for w in (work, full)
    ]
    assert structure[0] == structure[1]
    assert work.calls == full.calls
    assert work == trace(tiny)
    assert decoder_layers(tiny.module, tiny.decode_once) == (tiny.root, tiny.layers)


def test_the_ffn_side_has_only_experts():
    work = trace(loaded_model("longcat_flash", "longcat_a3_ep32_ffn", num_layers=2))
    assert [k.op for k in in_layer(work, 1)] == ["Recv", *(op for op, _, _ in EXPERTS), "Send"]
    second = [k for k in in_layer(work, 0) if k.op == "GroupedMatmul"][1]
    assert work.calls["model.layers.0.mlp.experts"][0].output_kernel == second.index
    assert work.is_ancestor(second.index, of(work, 1, "mlp.router.classifier"))


def test_one_die_alone_does_not_communicate():
    work = trace(loaded_model("longcat_flash", "unsharded", num_layers=1))
    assert not [k for k in work.kernels if k.engine == "communication" or k.comm_bytes]
    router = work.kernels[of(work, 0, "mlp.router.classifier")]
    assert router.weights[0].stored_bytes == 18 * MIB
