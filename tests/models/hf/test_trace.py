"""Full-size decode steps of transformers models as the fused kernels of the NPU."""

from collections import Counter

import pytest
import torch

from models import kernels
from models.hf.fused_view import is_transformers
from models.loading import load, load_deployment, load_spec
from models.problems import RefusedError
from models.trace import trace

BATCH, CONTEXT = 4, 4096
_SIZES = {"num_hidden_layers": 2, "vocab_size": 1000}


def loaded(model_type, config, **deployment):
    return load(load_spec(f"hf/{model_type}", **config), load_deployment("unsharded", **deployment), "ge_graph", "full")


def traced(model_type, config, **deployment):
    return trace(loaded(model_type, config, **deployment))


def both(name, **layers):
    """Our model for the NPU and the one of transformers, with the same dimensions."""
    ours = load_spec(name, **layers)
    dropped = ("rope_theta", "rope_scaling")  # does not change a kernel
    config = {k: v for k, v in ours.config.items() if k not in dropped}
    if name == "longcat_flash":
        config["head_dim"] = config["qk_rope_head_dim"]  # so is the rotated part called there
    served = load_deployment("unsharded")
    return trace(load(ours, served, "ge_graph", "full")), traced(name, {**config, "tie_word_embeddings": False})


def total(work, ops, value):
    return sum(value(k) for k in work.kernels if k.op in ops)


def flops(kernel):
    return kernel.flops


def big_weights(kernel):
    """Bytes of the matrices. Not norms, which MLAProlog reads; not LongCat's router, which ours stores in float32."""
    skipped = ("norm.weight", "classifier.weight")
    return sum(w.stored_bytes * w.share for w in kernel.weights if not w.weight.endswith(skipped))


def layer(work, i):
    """(operator, module in the layer) of layer i."""
    kernels = [k for k in work.kernels if k.layer == i]
    return [(k.op, k.module.partition(f".{i}")[2].removeprefix(".")) for k in kernels]


PRODUCTS = ("MatMul", "BatchMatMul", "MLAProlog", "TransposeBatchMatMul")


# --- against our own models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("qwen3", {"num_hidden_layers": 2}),
        ("deepseek_v3", {"num_hidden_layers": 4}),
        ("longcat_flash", {"num_layers": 2}),
    ],
)
def test_the_same_dimensions_give_the_same_work(name, layers):
    """Products, attention and experts: operations, weights and cache to the byte, though q, k, v and gate, up are
    merged in ours, and MLAProlog is one kernel there and six here."""
    ours, theirs = both(name, **layers)
    for ops in (PRODUCTS, ("FusedInferAttentionScore",), ("GroupedMatmul",)):
        assert total(theirs, ops, flops) == pytest.approx(total(ours, ops, flops), rel=1e-12)
        assert total(theirs, ops, big_weights) == pytest.approx(total(ours, ops, big_weights), rel=1e-12)
    for ops in (("FusedInferAttentionScore",), ("GroupedMatmul",), ("SwiGLU",)):
        assert total(theirs, ops, lambda k: k.other_bytes) == total(ours, ops, lambda k: k.other_bytes)
    counts = [Counter(k.op for k in w.kernels) for w in (ours, theirs)]
    for op in ("AddRmsNorm", "FusedInferAttentionScore", "GroupedMatmul", "SwiGLU", "MoeGatingTopK"):
        assert counts[0][op] == counts[1][op]
    assert theirs.tokens == ours.tokens and theirs.layers == ours.layers


def test_experts_are_read_by_the_same_shares():
    ours, theirs = both("longcat_flash", num_layers=1)
    (first, second), (up, down) = ([k for k in w.kernels if k.op == "GroupedMatmul"] for w in (ours, theirs))
    (own,), (read,) = second.weights, down.weights
    assert (read.share_low, read.share, read.share_high) == (own.share_low, own.share, own.share_high)
    # transformers stores rows for the zero experts, too, which nobody reads
    (read,) = up.weights
    assert read.stored_bytes == first.weights[0].stored_bytes * 768 / 512
    assert read.share * read.stored_bytes == pytest.approx(first.weights[0].share * first.weights[0].stored_bytes)


# --- one layer of each kind ----------------------------------------------------------------------------------------

DENSE = [
    ("AddRmsNorm", "input_layernorm"),
    ("MatMul", "self_attn.q_proj"),
    ("MatMul", "self_attn.k_proj"),
    ("MatMul", "self_attn.v_proj"),
    ("ApplyRotaryPosEmb", "self_attn"),
    ("ScatterPaKvCache", "self_attn"),
    ("FusedInferAttentionScore", "self_attn"),
    ("MatMul", "self_attn.o_proj"),
    ("AddRmsNorm", "post_attention_layernorm"),
]
MLP = [
    ("MatMul", "mlp.gate_proj"),
    ("MatMul", "mlp.up_proj"),
    ("SwiGLU", "mlp"),
    ("MatMul", "mlp.down_proj"),
]
EXPERTS = [
    ("MoeInitRouting", "mlp.experts"),
    ("GroupedMatmul", "mlp.experts"),
    ("SwiGLU", "mlp.experts"),
    ("GroupedMatmul", "mlp.experts"),
    ("MoeFinalizeRouting", "mlp.experts"),
]


def test_a_dense_layer_is_thirteen_kernels():
    assert layer(traced("llama", _SIZES), 1) == DENSE + MLP


def test_experts_with_biases_and_sinks():
    work = traced("gpt_oss", _SIZES)
    assert layer(work, 1) == [*DENSE, ("MatMul", "mlp.router"), ("MoeGatingTopK", "mlp.router"), *EXPERTS]
    attention, *products = (
        k for k in work.kernels if k.layer == 1 and k.op in ("FusedInferAttentionScore", "GroupedMatmul")
    )
    assert [w.weight for w in attention.weights] == ["model.layers.1.self_attn.sinks"]
    for product in products:
        stack, bias = product.weights
        assert bias.weight == f"{stack.weight}_bias" and bias.share == stack.share < 1


def test_experts_stored_one_after_the_other_in_matrices():
    work = traced("dbrx", {"n_layers": 2})
    products = [k for k in work.kernels if k.layer == 1 and k.op == "GroupedMatmul"]
    assert [w.weight.rpartition(".")[2] for k in products for w in k.weights] == ["w1", "v1", "w2"]
    assert len({(k.flops, k.weights[0].stored_bytes, k.weights[0].share) for k in products}) == 1
    assert ("SwiGLU", "ffn.experts") in layer(work, 1)


def test_experts_that_get_the_rows_of_every_expert_cost_those_of_the_picked_ones():
    work = traced("llama4_text", {**_SIZES, "moe_layers": [0, 1]})
    up, down = (k for k in work.kernels if k.layer == 1 and k.op == "GroupedMatmul")
    assert up.flops == 2 * down.flops == 2 * BATCH * 1 * 5120 * 2 * 8192
    assert up.weights[0].share == pytest.approx(1 - (1 - 1 / 16) ** BATCH)


def test_convolution_like_projections_and_a_norm_with_bias():
    work = traced("gpt2", {"n_layer": 2}, context_length=512)
    assert layer(work, 1) == [
        ("AddLayerNorm", "ln_1"),
        ("MatMul", "attn.c_attn"),
        ("ScatterPaKvCache", "attn"),
        ("FusedInferAttentionScore", "attn"),
        ("MatMul", "attn.c_proj"),
        ("AddLayerNorm", "ln_2"),
        ("MatMul", "mlp.c_fc"),
        ("Gelu", "mlp.act"),
        ("MatMul", "mlp.c_proj"),
    ]


@pytest.mark.parametrize("model_type, layers", [("bloom", "n_layer"), ("mpt", "n_layers")])
def test_attention_written_out_in_the_model_is_one_kernel(model_type, layers):
    """Products, scaling, bias, softmax: over all cached tokens, with the operations of both products."""
    work = traced(
        model_type, {layers: 2, "hidden_size" if model_type == "bloom" else "d_model": 128}, context_length=256
    )
    (attention,) = (k for k in work.kernels if k.layer == 1 and k.op == "FusedInferAttentionScore")
    assert attention.flops == 2 * 2 * BATCH * 256 * 128
    assert attention.other_bytes >= 2 * BATCH * 256 * 128 * 2  # keys and values in bf16
    assert not [k for k in work.kernels if k.op in ("BatchMatMul", "SoftmaxV2")]


def test_attention_reads_the_cache_of_the_key_value_heads():
    config = {**_SIZES, "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_size": 4096}
    (k,) = (k for k in traced("llama", config).kernels if k.layer == 1 and k.op == "FusedInferAttentionScore")
    assert k.other_bytes == 2 * BATCH * CONTEXT * 4 * 128 * 2 + 2 * BATCH * 4096 * 2
    assert k.flops == 2 * 2 * BATCH * 32 * CONTEXT * 128


def test_a_sliding_window_reads_only_the_window():
    config = {**_SIZES, "sliding_window": 128}
    reads = [k.other_bytes for k in traced("mistral", config).kernels if k.op == "FusedInferAttentionScore"]
    config["sliding_window"] = None
    whole = [k.other_bytes for k in traced("mistral", config).kernels if k.op == "FusedInferAttentionScore"]
    assert all(a < b / 16 for a, b in zip(reads, whole, strict=True))


def test_latents_are_expanded_for_the_tokens_of_the_step_only():
    one, three = (traced("deepseek_v3", {**_SIZES}, next_n=n) for n in (0, 2))
    products = [next(k for k in w.kernels if k.module.endswith("0.self_attn.kv_b_proj")) for w in (one, three)]
    assert [k.flops for k in products] == [2 * BATCH * n * 512 * 128 * (128 + 128) for n in (1, 3)]
    (attention,) = (k for k in one.kernels if k.layer == 0 and k.op == "FusedInferAttentionScore")
    cache = BATCH * CONTEXT * (512 + 64) * 2
    assert cache < attention.other_bytes < 1.1 * cache
    assert products[0].index in attention.inputs


def test_sparse_attention_reads_the_tokens_that_its_indexer_picked():
    work = traced("deepseek_v32", {**_SIZES, "index_topk": 1024})
    (attention,) = (k for k in work.kernels if k.layer == 1 and k.op == "FusedInferAttentionScore")
    (indexer,) = (k for k in work.kernels if k.layer == 1 and k.op == "LightningIndexer")
    assert attention.flops == 2 * BATCH * 128 * 1024 * (576 + 512)
    assert work.is_ancestor(indexer.index, attention.index)


def test_linear_attention_reads_and_writes_its_state_and_no_cache():
    work = traced("qwen3_next", {"num_hidden_layers": 4, "vocab_size": 1000})
    (rule,) = (k for k in work.kernels if k.layer == 1 and k.op == "RecurrentGatedDeltaRule")
    state = BATCH * 32 * 128 * 128 * 4
    assert 2 * state < rule.other_bytes < 2.1 * state
    assert not [k for k in work.kernels if k.layer == 1 and k.op == "FusedInferAttentionScore"]
    assert [k.layer for k in work.kernels if k.op == "FusedInferAttentionScore"] == [3]


# --- data flow, weights, calls -------------------------------------------------------------------------------------


def test_prefetch_dependencies_are_ancestors_of_their_targets():
    work = traced("qwen3_moe", {**_SIZES, "num_hidden_layers": 3})
    kernel = {(k.module, k.op): k.index for k in work.kernels if k.layer is not None}
    o_proj = kernel["model.layers.0.self_attn.o_proj", "MatMul"]
    gating = kernel["model.layers.0.mlp.gate", "MoeGatingTopK"]
    experts = work.readers("model.layers.0.mlp.experts.down_proj")
    q_next = work.readers("model.layers.1.self_attn.q_proj.weight")
    assert len(experts) == len(q_next) == 1
    assert work.is_ancestor(o_proj, gating) and work.is_ancestor(gating, experts[0])
    assert work.is_ancestor(experts[0], q_next[0]) and not work.is_ancestor(q_next[0], experts[0])
    v_proj = kernel["model.layers.1.self_attn.v_proj", "MatMul"]
    assert not work.is_ancestor(q_next[0], v_proj)


def test_module_calls_name_the_kernels_after_merging():
    work = traced("llama", _SIZES)
    for fqn, op in (("mlp.down_proj", "MatMul"), ("input_layernorm", "AddRmsNorm"), ("self_attn", "MatMul")):
        (call,) = work.calls[f"model.layers.1.{fqn}"]
        assert work.kernels[call.output_kernel].op == op
    assert work.kernels[work.calls["model.layers.1.mlp.down_proj"][0].input_kernel].op == "SwiGLU"


@pytest.mark.parametrize(
    "model_type", ["llama", "gpt_oss", "deepseek_v3", "falcon", "gemma3_text", "qwen3_next", "phimoe"]
)
def test_every_parameter_is_read(model_type):
    work = traced(model_type, {"num_hidden_layers": 4})
    assert {w.weight for k in work.kernels for w in k.weights} == set(work.weight_bytes)
    assert all(i < k.index == n for n, k in enumerate(work.kernels) for i in k.inputs)


def test_a_trace_can_be_repeated():
    model = loaded("gpt_oss", _SIZES)
    assert trace(model) == trace(model) == traced("gpt_oss", _SIZES)


# --- what a trace changes ------------------------------------------------------------------------------------------


def state_of(model):
    from transformers.cache_utils import Cache
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    source = model.python_module
    return (
        {name: value for name, value in vars(source).items() if callable(value)},
        dict(vars(Cache)),
        sorted(ALL_ATTENTION_FUNCTIONS),
        sorted(ALL_MASK_ATTENTION_FUNCTIONS),
        model.module.config._attn_implementation,
        [
            (fqn, sorted(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks))
            for fqn, m in model.module.named_modules()
        ],
    )


def test_everything_is_put_back(monkeypatch):
    """Also when the model fails in the middle of a step."""
    model = loaded("deepseek_v3", {**_SIZES, "num_hidden_layers": 4})
    before = state_of(model)
    trace(model)
    assert state_of(model) == before
    with monkeypatch.context() as patch:
        fails = lambda *_, **__: torch.zeros(2, device="meta") + torch.zeros(3, device="meta")  # noqa: E731
        patch.setattr(model.module.model.layers[1].mlp, "forward", fails)
        with pytest.raises(RefusedError, match="Attempting to broadcast"):
            trace(model)
    assert state_of(model) == before and kernels.active_recorder() is None


def tiny(model_type):
    return load(load_spec(f"hf/{model_type}"), load_deployment("unsharded"), "ge_graph", "tiny")


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "gpt_oss"])
def test_a_tiny_model_has_the_same_kernels_and_runs_as_before_afterwards(model_type):
    untouched, model = tiny(model_type), tiny(model_type)
    small = trace(model)  # on the CPU, before anything else has run
    assert torch.equal(model.decode_once(), untouched.decode_once())
    dense = {"first_k_dense_replace": 1} if model_type == "deepseek_v3" else {}
    full = traced(model_type, {"num_hidden_layers": small.layers, **dense})
    casts = [kernel for kernel in layer(full, 1) if kernel[0] == "Cast"]  # a tiny model is in float32 throughout
    assert layer(small, 1) == [kernel for kernel in layer(full, 1) if kernel not in casts]


def test_models_of_our_own_are_left_alone():
    assert is_transformers(tiny("llama").module)
    assert not is_transformers(load(load_spec("qwen3"), load_deployment("unsharded"), "ge_graph", "tiny").module)
