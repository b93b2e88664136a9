"""Configurations of transformers: types, overrides, completing, shrinking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.hf.configs import full_config, tiny_config
from models.hf.tiny import kept_layers, tiny_values
from models.hf.tiny_fields import HEADS, KV_COUNTS, RULES
from models.hf.types import causal_lm_types, class_name, is_transformers, type_problem
from models.problems import RefusedError


def refused(function, *arguments) -> list[str]:
    with pytest.raises(RefusedError) as error:
        function(*arguments)
    return [f"{p.code} {p.key}" for p in error.value.problems]


def test_the_types_are_those_of_the_installed_transformers():
    known = causal_lm_types()
    assert {"llama", "gpt2", "deepseek_v3", "longcat_flash", "gpt_oss"} <= set(known) and "t5" not in known
    assert class_name("llama") == "LlamaForCausalLM"
    assert list(known) == sorted(known)


@pytest.mark.parametrize(
    ("name", "code", "fix"),
    [
        ("lama", "unknown-model-type", "Did you mean llama?"),
        ("bert_something", "unknown-model-type", "Did you mean bert?"),
        ("t5", "not-a-causal-lm", "list hf"),
        ("qwen2_5_omni_text", "not-a-causal-lm", ""),
        ("zzzz", "unknown-model-type", "list hf"),
    ],
)
def test_another_name_is_refused_with_what_was_meant(name: str, code: str, fix: str):
    problem = type_problem(name)
    assert problem is not None and fix in problem.fix
    assert problem.code in (code, "unknown-model-type")


def test_only_hf_names_are_transformers_models():
    assert [is_transformers(name) for name in ("hf", "hf/llama", "hfx", "qwen3", "")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_overrides_change_fields_and_what_follows_from_them():
    config = full_config("llama", {"num_hidden_layers": 4, "num_attention_heads": 16})
    assert config.num_hidden_layers == 4 and config.head_dim == 256


def test_an_override_inside_a_part_keeps_the_rest_of_it():
    config = full_config("gemma3", {"text_config": {"num_hidden_layers": 3}})
    assert config.text_config.num_hidden_layers == 3 and len(config.text_config.layer_types) == 3
    assert config.text_config.hidden_size == full_config("gemma3", {}).text_config.hidden_size


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        ({"num_hidden_layer": 4}, ["unknown-key model.config.num_hidden_layer"]),
        ({"hidden_size": "wide"}, ["bad-model-config model.config"]),
        ({"hidden_size": 63}, ["bad-model-config model.config"]),
        ({"a": 1, "b": 2}, ["unknown-key model.config.a", "unknown-key model.config.b"]),
    ],
)
def test_bad_fields_are_refused(fields: dict, problems: list[str]):
    assert refused(full_config, "llama", fields) == problems


def test_fields_of_the_tiny_model_are_checked_under_their_own_key():
    assert refused(tiny_config, full_config("llama", {}), {"n_layers": 1}) == ["unknown-key model.tiny.n_layers"]


def test_fewer_layers_than_a_stored_list_says_cut_the_list():
    stored = full_config("qwen3_next", {}).to_dict()
    config = full_config("qwen3_next", {"num_hidden_layers": 4}, stored)
    assert config.layer_types == stored["layer_types"][:4]


def test_an_older_config_json_means_the_same():
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    old = {
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.0",
        "rope_theta": 500000.0,
        "rope_scaling": {**scaling, "original_max_position_embeddings": 8192},
        "hidden_size": 2048,
    }
    config = full_config("llama", {}, old)
    assert config.rope_parameters["rope_theta"] == 500000.0 and config.rope_parameters["factor"] == 8.0
    assert config.hidden_size == 2048


@pytest.mark.parametrize("model_type", ["dots1", "ministral", "nemotron", "hunyuan_v1_dense"])
def test_what_a_default_configuration_leaves_open_is_filled_in(model_type: str):
    config = full_config(model_type, {})
    assert config.num_key_value_heads and config.to_dict().get("head_dim", 1)
    assert config.to_dict().get("n_routed_experts", 1)


def test_grouped_heads_stay_grouped_and_single_ones_single():
    for full, tiny in (((32, 8), (4, 2)), ((32, 32), (4, 4)), ((32, 1), (4, 1))):
        config = full_config("llama", {"num_attention_heads": full[0], "num_key_value_heads": full[1]})
        small = tiny_config(config, {})
        assert (small.num_attention_heads, small.num_key_value_heads) == tiny


def test_one_layer_of_each_kind_is_kept():
    config = full_config("qwen3_next", {})
    small = tiny_config(config, {})
    assert set(small.layer_types) == set(config.layer_types)
    assert small.num_hidden_layers == len(small.layer_types) < 5


def test_layers_that_differ_still_differ_when_they_are_tiny():
    small = tiny_config(full_config("gemma4_text", {}), {})
    dims = {small.per_layer_config[i].head_dim for i in range(small.num_hidden_layers)}
    assert len(dims) == 2


def test_special_tokens_fit_the_tiny_vocabulary_and_stay_apart():
    small = tiny_config(full_config("qwen3_5", {}), {})
    tokens = [small.image_token_id, small.video_token_id, small.vision_start_token_id, small.vision_end_token_id]
    assert len(set(tokens)) == 4 and max(tokens) < small.text_config.vocab_size


@given(st.lists(st.sampled_from(["full", "sliding", "linear"]), min_size=3, max_size=40))
def test_kept_layers_are_in_order_and_hold_every_kind(kinds: list[str]):
    kept = kept_layers({"num_hidden_layers": len(kinds), "layer_types": kinds})
    assert kept == sorted(set(kept)) and 2 <= len(kept) <= 4
    assert {kinds[layer] for layer in kept} == set(kinds)


@given(st.sampled_from(sorted(RULES)), st.integers(0, 10**6))
def test_a_size_never_appears_from_nothing_and_shrinking_is_stable(name: str, value: int):
    fields = {"num_attention_heads": HEADS}
    small = RULES[name](value, fields)
    assert small >= 0 and (value > 0 or small == 0)
    if name not in KV_COUNTS:
        assert RULES[name](small, fields) == small


def test_shrinking_does_not_change_the_full_configuration():
    config = full_config("deepseek_v3", {})
    before = config.to_dict()
    tiny_values(config)
    assert config.to_dict() == before
