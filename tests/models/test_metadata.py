"""Metadata hold what the operators want as they want it, so that no attention has to convert anything."""

import pytest
import torch

from models.loading import load, load_deployment, load_spec
from models.metadata import make_metadata

CPU = torch.device("cpu")


def metadata(tokens):
    return make_metadata(False, 2, 7, tokens, 3, 4, CPU)


def test_sequences_own_consecutive_pages():
    found = metadata(tokens=2)
    assert found.block_table.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.block_table.dtype is torch.int32
    assert found.positions.tolist() == [7, 8, 7, 8]
    assert found.slot_mapping.tolist() == [7, 8, 12 + 7, 12 + 8]
    assert found.kv_lengths.tolist() == list(found.host_kv_lengths) == [9, 9]
    assert found.query_lengths.tolist() == list(found.host_query_lengths) == [2, 4]


def test_several_tokens_per_sequence_need_the_compressed_causal_mask():
    mask = metadata(tokens=2).attention_mask
    assert (mask.shape, mask.dtype) == ((2048, 2048), torch.bool)
    assert mask[5].nonzero().flatten().tolist() == list(range(6, 2048))  # hidden: what comes later


def test_one_token_per_sequence_needs_none():
    assert metadata(tokens=1).attention_mask is None


def test_all_steps_share_one_mask():
    assert metadata(tokens=2).attention_mask is metadata(tokens=3).attention_mask


@pytest.mark.parametrize(
    ("model", "deployment", "layers"),
    [
        ("longcat_flash", "longcat_a3_ep32", {"num_layers": 1}),
        ("deepseek_v3", "deepseek_a3_ep16", {"num_hidden_layers": 1, "first_k_dense_replace": 0}),
    ],
)
def test_scales_have_the_type_that_their_operator_wants(model, deployment, layers):
    loaded = load(load_spec(model, **layers), load_deployment(deployment), "ge_graph", "full")
    stored = dict(loaded.module.named_parameters())
    assert stored["model.layers.0.mlp.experts.w13_weight_scale"].dtype is torch.float32  # DequantSwigluQuant
    assert stored["model.layers.0.mlp.experts.w2_weight_scale"].dtype is torch.bfloat16  # GroupedMatmul with bf16 out
