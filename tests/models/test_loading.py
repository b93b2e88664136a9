"""Loading: full size without memory, tiny with the same structure, rebuilt from other source, and bad input."""

import importlib.util
import time
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import ops
from models.deployment import Deployment
from models.kernels import recording
from models.loading import LoadedModel, ModelSpec, load, load_deployment, load_spec
from models.problems import RefusedError

SERVED = [
    ("longcat_flash", "unsharded"),
    ("longcat_flash", "longcat_a3_ep128"),
    ("longcat_flash", "longcat_a3_ep32_ffn"),
    ("qwen3", "qwen3_a2_tp1"),
]


def loaded(model: str, deployment: str, size: str, **fields: object) -> LoadedModel:
    return load(load_spec(model), load_deployment(deployment, **fields), "ge_graph", size)


class Kernels:
    """A recorder that lists (kernel, stream, AIC cores)."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, str, int]] = []
        self.stack: list[tuple[str, int]] = [("main", 0)]

    def kernel(self, kind, function, args, kwargs):
        self.launches.append((kind.op, *self.stack[-1]))
        return function(*args, **kwargs)

    def stream(self, label):
        return self.pushed((label, self.stack[-1][1]))

    def cores(self, aic, aiv):
        return self.pushed((self.stack[-1][0], aic))

    def pushed(self, entry):
        @contextmanager
        def context():
            self.stack.append(entry)
            yield
            self.stack.pop()

        return context()


def launches(model: LoadedModel) -> list[tuple[str, str, int]]:
    recorder = Kernels()
    with recording(recorder):
        model.decode_once()
    return recorder.launches


def test_full_longcat_flash_loads_in_seconds_and_without_memory():
    loaded("longcat_flash", "unsharded", "full")  # the first load imports
    start = time.perf_counter()
    model = loaded("longcat_flash", "longcat_a3_ep128", "full")
    model.decode_once()
    assert time.perf_counter() - start < 10
    assert all(p.device.type == "meta" for p in model.module.parameters())
    assert len(model.module.model.layers) == 28


@pytest.mark.parametrize(("name", "deployment"), SERVED)
def test_a_tiny_model_launches_the_kernels_of_the_full_one(name, deployment):
    tiny = loaded(name, deployment, "tiny")
    layers = {"longcat_flash": "num_layers", "qwen3": "num_hidden_layers"}[name]
    spec = load_spec(name, **{layers: tiny.spec.tiny[layers]})
    full = load(spec, load_deployment(deployment), "ge_graph", "full")
    assert launches(full) == launches(tiny)
    assert [n for n, _ in full.module.named_parameters()] == [n for n, _ in tiny.module.named_parameters()]


@pytest.mark.parametrize(("name", "deployment"), SERVED)
def test_runs_are_repeatable_and_logits_differ_between_tokens(name, deployment):
    first = loaded(name, deployment, "tiny").run(decode_steps=2)
    second = loaded(name, deployment, "tiny").run(decode_steps=2)
    step = load_deployment(deployment).query_length
    assert [len(out) for out in first] == [2 * 5, 2 * step, 2 * step]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[0].std() > 0.1
    assert not torch.equal(first[-1][0], first[-1][-1])


def test_before_decode_is_called_between_prefill_and_decode():
    model = loaded("qwen3", "unsharded", "tiny")
    phases = []
    handle = model.module.register_forward_pre_hook(lambda _, args: phases.append(args[2].is_prefill))
    model.run(decode_steps=2, before_decode=lambda: phases.append("now"))
    handle.remove()
    assert phases == [True, "now", False, False]


@pytest.mark.parametrize(("name", "deployment"), SERVED)
def test_a_rebuilt_model_shares_all_state_and_takes_switches(name, deployment):
    model = loaded(name, deployment, "tiny")
    rebuilt = model.rebuild(model.python_module, enable_prefetch=True)
    assert rebuilt.config.enable_prefetch
    assert not model.module.config.enable_prefetch
    ours, theirs = dict(model.module.named_parameters()), dict(rebuilt.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(ours[k] is theirs[k] for k in ours)
    assert all(torch.equal(a, b) for a, b in zip(model.run(), model.run(rebuilt), strict=True))


def test_a_rebuilt_model_has_the_other_modules_classes():
    model = loaded("qwen3", "unsharded", "tiny")
    sibling = ModuleType("sibling")
    source = model.python_module.__loader__.get_source(model.python_module.__name__)
    exec(
        compile(source.replace("logits = self.lm_head(", "logits = 2 * self.lm_head("), "sibling", "exec"),
        vars(sibling),
    )
    doubled = model.run(model.rebuild(sibling), decode_steps=0)[0]
    assert torch.equal(doubled, 2 * model.run(decode_steps=0)[0])


# ------------------------------------------------------------------------------------------------------- structure


def test_the_moe_has_its_own_stream_and_cores_in_decode():
    found = launches(loaded("longcat_flash", "longcat_a3_ep128", "tiny"))
    assert ("MoeDistributeDispatch", "moe", 8) in found
    assert ("QuantBatchMatmul", "main", 16) in found
    assert {stream for _, stream, _ in found} == {"main", "moe"}
    single = launches(loaded("longcat_flash", "longcat_a3_ep128", "tiny", multi_stream=0))
    assert {(stream, cores) for _, stream, cores in single} == {("main", 0)}


def test_collectives_are_launched_only_by_groups():
    communication = {"AllGather", "ReduceScatter", "AllToAll", "MoeDistributeDispatch", "MoeDistributeCombine"}
    sharded = {op for op, _, _ in launches(loaded("longcat_flash", "longcat_a3_ep128", "tiny"))}
    alone = {op for op, _, _ in launches(loaded("longcat_flash", "unsharded", "tiny"))}
    assert communication <= sharded
    assert not communication & alone
    assert {"MoeInitRouting", "MoeFinalizeRouting"} <= alone


def test_each_side_of_a_disaggregated_deployment_has_its_part():
    attention = loaded("longcat_flash", "longcat_a3_ep32", "tiny", role="attention")
    names = {name for name, _ in attention.module.named_modules()}
    assert "model.layers.0.mlps.1.down_proj" in names
    assert "model.layers.0.mlp" not in names
    ops_there = [op for op, _, _ in launches(attention)]
    assert ops_there.count("Send") == ops_there.count("Recv") == 3
    ffn = loaded("longcat_flash", "longcat_a3_ep32_ffn", "tiny")
    assert {name.split(".")[3] for name, _ in ffn.module.named_parameters()} == {"mlp"}
    layer = [op for op, _, _ in launches(ffn)][:10]
    assert layer == [
        "Recv",
        "Cast",
        "MatMul",
        "MoeGatingTopK",
        "MoeDistributeDispatch",
        "GroupedMatmul",
        "DequantSwigluQuant",
        "GroupedMatmul",
        "MoeDistributeCombine",
        "Send",
    ]


# -------------------------------------------------------------------------------------------------------- bad input


def problems_of(function, *args) -> dict[str, str]:
    with pytest.raises(RefusedError) as refused:
        function(*args)
    return {p.key: p.code for p in refused.value.problems}


def test_missing_unknown_and_ill_typed_fields_are_reported_together():
    spec = load_spec("longcat_flash")
    config = dict(spec.config)
    del config["hidden_size"], config["moe_topk"]
    config |= {"q_lora_rank": "big", "hiden_size": 5, "num_layers": 0, "router_bias": True}
    mapping = {"name": "x", "architecture": "longcat_flash", "config": config, "tiny": {"vocab": 1}}
    assert problems_of(ModelSpec.from_mapping, mapping, "conf/model/x.yaml") == {
        "model.config.hidden_size": "missing-key",
        "model.config.moe_topk": "missing-key",
        "model.config.q_lora_rank": "bad-type",
        "model.config.hiden_size": "unknown-key",
        "model.config.router_bias": "unknown-key",
        "model.config.num_layers": "bad-value",
        "model.tiny.vocab": "unknown-key",
    }


def test_an_unknown_architecture_or_name_lists_the_known_ones():
    mapping = {"name": "x", "architecture": "longcat_flush", "config": {}}
    with pytest.raises(RefusedError, match="Did you mean longcat_flash"):
        ModelSpec.from_mapping(mapping)
    with pytest.raises(RefusedError, match=r"Known: .*qwen3"):
        load_spec("lama")
    with pytest.raises(RefusedError, match=r"Known: .*longcat_a3_ep128"):
        load_deployment("longcat")


@pytest.mark.parametrize("mapping", [{}, {"config": 5}, {"name": 1, "architecture": None, "config": None}])
def test_a_mapping_that_is_no_model_is_refused(mapping):
    assert problems_of(ModelSpec.from_mapping, mapping)


any_value = st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.floats(), st.text(max_size=2), st.just({}))
fields_of_a_config = st.sampled_from(["hidden_size", "moe_topk", "rope_theta", "x", 3])


@given(st.dictionaries(fields_of_a_config, any_value), st.dictionaries(fields_of_a_config, any_value), any_value)
def test_any_mapping_is_a_model_or_refused(config, tiny, name):
    whole = load_spec("longcat_flash")
    mapping = {"name": name, "architecture": whole.architecture, "config": {**whole.config, **config}, "tiny": tiny}
    try:
        ModelSpec.from_mapping(mapping)
    except RefusedError as refused:
        assert refused.problems
    else:
        assert isinstance(name, str)
        assert "x" not in config


def test_parallel_sizes_must_divide_what_they_cut():
    spec = load_spec("longcat_flash", num_attention_heads=60, vocab_size=1000)
    served = Deployment("x", world_size=128, o_proj_tp_size=8, lmhead_tp_size=16, moe_ep_size=128, dense_tp_size=128)
    assert problems_of(load, spec, served, "eager", "full") == {
        "deployment.o_proj_tp_size": "bad-value",
        "deployment.lmhead_tp_size": "bad-value",
    }


def test_qwen3_refuses_what_a_dense_model_does_not_have():
    served = load_deployment("longcat_a3_ep32")
    found = problems_of(load, load_spec("qwen3"), served, "eager", "full")
    assert {"deployment.moe_ep_size", "deployment.dense_tp_size", "deployment.o_proj_tp_size"} <= found.keys()
    assert "deployment.role" in problems_of(load, load_spec("qwen3"), Deployment("x", role="ffn"), "eager", "full")


def test_a_context_beyond_the_models_positions_is_refused():
    served = Deployment("x", context_length=50_000)
    assert problems_of(load, load_spec("qwen3"), served, "eager", "full") == {"deployment.context_length": "bad-value"}


def test_npu_operators_without_torch_npu_say_what_to_install():
    if importlib.util.find_spec("torch_npu") is not None:
        pytest.skip("torch_npu is installed")
    with pytest.raises(ImportError, match=r"npu-recipes\[npu\]"), ops.use_npu_operators():
        pass
