"""A deployment: what its YAML may say, all mistakes at once, and its tiny version."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.deployment import PARALLEL_SIZES, Deployment
from models.loading import load_deployment
from models.problems import RefusedError

NAMES = sorted(p.stem for p in (Path(__file__).parents[2] / "conf" / "deployment").glob("*.yaml"))


def problems_of(mapping: dict) -> dict[str, str]:
    with pytest.raises(RefusedError) as refused:
        Deployment.from_mapping(mapping, "conf/deployment/x.yaml")
    assert all(p.severity == "error" and p.file == "conf/deployment/x.yaml" for p in refused.value.problems)
    return {p.key: p.code for p in refused.value.problems}


def test_the_committed_deployments_load():
    assert {"unsharded", "longcat_a3_ep32", "longcat_a3_ep128", "longcat_a3_ep32_ffn", "qwen3_a2_tp1"} <= set(NAMES)
    for name in NAMES:
        assert load_deployment(name).name == name


def test_ep128_is_served_as_the_reference_serves_it():
    served = load_deployment("longcat_a3_ep128")
    assert (served.moe_ep_size, served.dense_tp_size, served.o_proj_tp_size, served.lmhead_tp_size) == (128, 8, 8, 16)
    assert (served.quant, served.batch_size, served.next_n, served.context_length) == ("w8a8", 4, 1, 4096)
    assert served.core_limits == {"moe": [8, 16], "main": [16, 32]}


def test_every_mistake_is_reported_at_once():
    found = problems_of(
        {
            "world_size": 32,
            "moe_ep_sizes": 32,
            "dense_tp_size": "eight",
            "o_proj_tp_size": 5,
            "batch_size": 0,
            "quant": "w4a4",
            "acceptance": 1.5,
            "multi_stream": True,
            "core_limits": {"moe": [8]},
        }
    )
    assert found == {
        "deployment.name": "missing-key",
        "deployment.moe_ep_sizes": "unknown-key",
        "deployment.dense_tp_size": "bad-type",
        "deployment.o_proj_tp_size": "bad-value",
        "deployment.batch_size": "bad-value",
        "deployment.quant": "bad-type",
        "deployment.acceptance": "bad-value",
        "deployment.multi_stream": "bad-type",
        "deployment.core_limits.moe": "bad-value",
    }


def test_an_unknown_key_names_the_nearest_one():
    with pytest.raises(RefusedError, match="Did you mean moe_ep_size"):
        Deployment.from_mapping({"name": "x", "moe_ep_sizes": 32})


@pytest.mark.parametrize(
    ("mapping", "key"),
    [
        ({"world_size": 8, "attn_tp_size": 2}, "deployment.o_proj_tp_size"),
        ({"world_size": 8, "moe_ep_size": 8, "moe_tp_size": 2}, "deployment.moe_tp_size"),
        ({"context_length": 1, "next_n": 1}, "deployment.context_length"),
        ({"next_n": -1}, "deployment.next_n"),
        ({"idle_us": -1.0}, "deployment.idle_us"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(mapping, key):
    assert problems_of({"name": "x", **mapping}) == {key: "bad-value"}


def test_tokens_per_step_counts_accepted_tokens_only():
    assert Deployment("x", batch_size=4, next_n=1, acceptance=0.9).tokens_per_step == pytest.approx(4 * 1.9)
    assert Deployment("x", batch_size=4).tokens_per_step == 4


@given(st.dictionaries(st.sampled_from(PARALLEL_SIZES), st.sampled_from([1, 2, 4, 8]), max_size=7))
def test_tiny_keeps_the_structure(sizes):
    served = Deployment("x", world_size=64, quant="w8a8", next_n=2, multi_stream=1, **sizes)
    tiny = served.tiny()
    for name in PARALLEL_SIZES:
        assert (getattr(tiny, name) > 1) == (getattr(served, name) > 1)
        assert getattr(tiny, name) <= 2
    kept = ("role", "quant", "next_n", "multi_stream", "core_limits", "acceptance")
    assert all(getattr(tiny, name) == getattr(served, name) for name in kept)
    assert (tiny.batch_size, tiny.context_length) == (2, 64)


any_value = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.text(max_size=3), st.just([1]), st.just({})
)


@given(st.dictionaries(st.sampled_from([*Deployment.__dataclass_fields__, "other"]), any_value))
def test_any_mapping_is_a_deployment_or_refused(mapping):
    try:
        Deployment.from_mapping(mapping)
    except RefusedError as refused:
        assert refused.problems
