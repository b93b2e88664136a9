"""The kernels: their plain meaning against definitions, their costs against arithmetic, collectives in one process."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from models import ops
from models.metadata import make_metadata
from models.ops import collectives, costs, npu, plain

CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --------------------------------------------------------------------------------------------------------- meaning


def test_every_npu_function_has_the_signature_of_its_plain_meaning():
    shared = [n for n, f in vars(npu).items() if inspect.isfunction(f) and hasattr(plain, n) and n[0] != "_"]
    assert {"mla_prolog", "grouped_matmul", "dispatch", "combine", "fused_infer_attention_score"} <= set(shared)
    for name in shared:
        theirs, ours = inspect.signature(getattr(npu, name)), inspect.signature(getattr(plain, name))
        assert list(theirs.parameters) == list(ours.parameters), name


def test_every_cost_function_takes_the_arguments_of_its_kernel():
    for name, cost in vars(costs).items():
        function = getattr(ops, name, None)
        if inspect.isfunction(cost) and function is not None and cost.__module__ == costs.__name__:
            wanted, given_ = inspect.signature(function).parameters, inspect.signature(cost).parameters
            if not any(p.kind is p.VAR_POSITIONAL for p in given_.values()):
                assert list(wanted) == list(given_), name


def test_add_rms_norm_is_an_add_and_a_norm():
    x, residual, weight = random(3, 8), random(3, 8, seed=1), random(8, seed=2)
    normed, total = ops.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.allclose(normed, F.rms_norm(total, (8,), weight, 1e-6), atol=1e-6)


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 9), st.integers(0, 9))
def test_quantised_matmul_is_exact_on_its_integers(tokens, inner, outputs, seed):
    x, scale = ops.dynamic_quant(random(tokens, inner, seed=seed))
    assert x.dtype is torch.int8
    assert x.abs().max() == 127
    weight = torch.randint(-127, 128, (outputs, inner), dtype=torch.int8)
    weight_scale = torch.rand(outputs) + 0.1
    sums = ops.quant_matmul(x, weight, weight_scale)
    assert sums.dtype is torch.int32
    assert torch.equal(sums.double(), x.double() @ weight.double().t())
    scaled = ops.quant_matmul(x, weight, weight_scale, scale, torch.float32)
    assert torch.allclose(scaled, sums * scale[:, None] * weight_scale, rtol=1e-5)


def test_dynamic_quant_of_zeros_is_zero():
    x, scale = ops.dynamic_quant(torch.zeros(2, 4))
    assert not x.any()
    assert torch.isfinite(scale).all()


def naive_experts(x, ids, weights, w13, w2, routing):
    out = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for expert, weight in zip(ids[token].tolist(), weights[token], strict=True):
            if expert >= routing.experts:
                out[token] += weight * x[token]
            else:
                gate, up = (x[token] @ w13[expert]).chunk(2)
                out[token] += weight * ((F.silu(gate) * up) @ w2[expert])
    return out


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 3), st.integers(1, 3), st.integers(0, 99))
def test_dispatch_experts_combine_is_a_mixture_of_experts(tokens, experts, zero_experts, top_k, seed):
    top_k = min(top_k, experts + zero_experts)
    routing = ops.Routing(experts, zero_experts, top_k, ep_size=1)
    x, w13, w2 = (
        random(tokens, 4, seed=seed),
        random(experts, 4, 6, seed=seed + 1),
        random(experts, 3, 4, seed=seed + 2),
    )
    logits = random(tokens, experts + zero_experts, seed=seed + 3)
    ids, weights = ops.moe_gating_top_k(logits, torch.zeros(experts + zero_experts), top_k, 1.5)
    rows, scale, order, counts = ops.moe_dispatch(x, ids, routing, False)
    assert scale is None
    assert counts.tolist() == [int((ids == e).sum()) for e in range(experts)]
    merged = ops.grouped_matmul(rows, w13, counts, routing)
    activated, _ = ops.activate(merged, None, None, counts)
    out = ops.grouped_matmul(activated, w2, counts, routing)
    combined = ops.moe_combine(out, order, ids, weights, x, routing)
    assert torch.allclose(combined, naive_experts(x, ids, weights, w13, w2, routing), atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(
    *(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.sampled_from([1, 2]), st.integers(1, 2)),
    st.sampled_from(["ge_graph", "npugraph_ex"]),
)
def test_attention_reads_the_paged_cache_causally(sequences, past, tokens, kv_heads, groups, exe_mode):
    metadata = make_metadata(False, sequences, past, tokens, pages=3, block_size=4, device=CPU)
    heads, length = kv_heads * groups, past + tokens
    key, value = random(sequences, length, kv_heads, 8), random(sequences, length, kv_heads, 8, seed=1)
    query = random(sequences * tokens, heads, 8, seed=2)
    caches = [torch.full((sequences * 3, 4, kv_heads, 8), 9.0) for _ in range(2)]
    everything = make_metadata(True, sequences, 0, length, pages=3, block_size=4, device=CPU)
    ops.write_cache(key.flatten(0, 1), value.flatten(0, 1), *caches, everything.slot_mapping, exe_mode)
    out = ops.fused_infer_attention_score(query, *caches, metadata, 0.3)
    by_head = [t.repeat_interleave(groups, 2).transpose(1, 2) for t in (key, value)]
    mask = torch.ones(tokens, length, dtype=torch.bool).tril(past)
    expected = F.scaled_dot_product_attention(
        query.view(sequences, tokens, heads, 8).transpose(1, 2), *by_head, attn_mask=mask, scale=0.3
    )
    assert torch.allclose(out.view(sequences, tokens, heads, 8).transpose(1, 2), expected, atol=1e-5)


# ----------------------------------------------------------------------------------------------------- collectives


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_to_all", "all_reduce"])
def test_a_collective_returns_a_new_tensor(name):
    x = random(4, 3)
    before = x.clone()
    out = getattr(ops, name)(x, "dense_tp", 2)
    assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert torch.equal(x, before)


def test_the_loopback_has_the_shapes_of_the_group():
    x = random(4, 3)
    assert torch.equal(ops.all_gather(x, "dense_tp", 2), torch.cat([x, x]))
    assert torch.equal(ops.reduce_scatter(x, "dense_tp", 2), x[:2])
    assert torch.equal(ops.all_to_all(x, "dense_tp", 2), torch.cat([x[:2], x[:2]]))
    assert collectives.is_loopback("dense_tp")
    assert collectives.rank("dense_tp") == 0


# ----------------------------------------------------------------------------------------------------------- costs


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_a_matmul_costs_two_operations_per_multiply_add_at_its_weights_peak():
    cost = costs.matmul(empty(64, 6144), empty(768, 6144, dtype=torch.float32))
    assert cost.flops == 2 * 64 * 6144 * 768
    assert cost.flops_dtype == "fp32"
    assert costs.matmul(empty(8, 16), empty(4, 16, dtype=torch.int8)).flops_dtype == "int8"


def test_attention_reads_each_sequence_s_context_once():
    metadata = make_metadata(False, 4, 4094, 2, pages=32, block_size=128, device=torch.device("meta"))
    latent, rope = empty(128, 128, 1, 512), empty(128, 128, 1, 64)
    cost = costs.fused_infer_attention_score(empty(8, 64, 512), latent, latent, metadata, 1.0, empty(8, 64, 64), rope)
    assert cost.flops == 2 * 8 * 64 * 4096 * (576 + 512)
    assert cost.other_bytes == 4 * 4096 * 576 * 2 + 8 * 64 * (512 + 64 + 512) * 2
    key, value = empty(128, 128, 8, 128), empty(128, 128, 8, 128)
    grouped = costs.fused_infer_attention_score(empty(4, 32, 128), key, value, metadata, 1.0)
    assert grouped.other_bytes == 4 * 4096 * 2 * 8 * 128 * 2 + 4 * 32 * 256 * 2


def test_experts_cost_what_is_expected_to_reach_one_die():
    routing = ops.Routing(experts=512, zero_experts=256, top_k=12, ep_size=128)
    assert routing.local_experts == 4
    assert routing.expected_rows(8) == 8 * 128 * 12 / 768 * 4
    x = empty(8 * 12, 6144, dtype=torch.int8)
    cost = costs.grouped_matmul(x, empty(4, 6144, 4096, dtype=torch.int8), empty(4), routing)
    assert cost.flops == 2 * 64 * 6144 * 4096
    low, nominal, high = cost.shares["weight"]
    assert nominal == 1 - (1 - 12 / 768) ** 1024
    assert low < nominal <= high <= 1


@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 64), st.integers(1, 4), st.sampled_from([1, 2, 8]))
def test_shares_of_experts_are_ordered_and_grow_with_tokens(tokens, per_die, zero_experts, top_k, ep_size):
    experts = per_die * ep_size
    routing = ops.Routing(experts, zero_experts, min(top_k, experts), ep_size)
    low, nominal, high = routing.active_share(tokens)
    assert 0 < low <= nominal <= high <= 1
    assert routing.active_share(2 * tokens)[1] >= nominal


def test_bytes_sent_by_each_collective():
    x = empty(8, 100)
    assert costs.all_gather(x, "g", 4).comm_bytes == 1600 * 3
    assert costs.reduce_scatter(x, "g", 4).comm_bytes == costs.all_to_all(x, "g", 4).comm_bytes == 1200
    assert costs.all_reduce(x, "g", 4).comm_bytes == 2400
    routing = ops.Routing(experts=512, zero_experts=256, top_k=12, ep_size=128)
    ids = empty(8, 12, dtype=torch.int32)
    sent = costs.dispatch(empty(8, 6144), ids, routing, quantised=True).comm_bytes
    assert sent == pytest.approx(64 * (6144 + 4) * 127 / 128)


def test_an_embedding_reads_the_rows_it_looks_up():
    cost = costs.gather(empty(8, dtype=torch.int64), empty(1000, 64))
    assert cost.shares["table"] == (0.008, 0.008, 0.008)
    assert cost.other_bytes == 8 * 64 * 2


def test_limits_and_streams_are_null_contexts_unless_enabled():
    with ops.stream("moe", False), ops.limit_cores((8, 16), False), ops.limit_cores(None, True):
        assert ops.swiglu(random(1, 4)).shape == (1, 2)
