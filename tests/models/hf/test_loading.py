"""Models of transformers: full size without memory, tiny with numbers, run, extended, rebuilt, and what is refused."""

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.deployment import Deployment
from models.hf.extending import past_state
from models.hf.loaded import TransformersModel, load_problems
from models.hf.meta import answers
from models.hf.stepping import State
from models.loading import load, load_deployment, load_spec
from models.problems import RefusedError

# Each of them is another case: rotary, learned positions and Conv1D, ALiBi, experts, MLA, sliding windows of
# heterogeneous layers, a state space, a vision tower, two kinds of layers.
TYPES = [
    "llama",
    "gpt2",
    "falcon",
    "qwen3_moe",
    "deepseek_v3",
    "longcat_flash",
    "gemma4_text",
    "gpt_oss",
    "mamba2",
    "gemma3",
    "qwen3_next",
    "recurrent_gemma",
    "musicgen",
]
SMALL = {"num_hidden_layers": 2}


def loaded(model_type: str, size: str = "tiny", served: dict | None = None, **config: object) -> TransformersModel:
    found = load(
        load_spec(f"hf/{model_type}", **config), load_deployment("unsharded", **(served or {})), "ge_graph", size
    )
    assert isinstance(found, TransformersModel)
    return found


def refused(function, *arguments, **fields) -> str:
    with pytest.raises(RefusedError) as error:
        function(*arguments, **fields)
    return "; ".join(f"{p.code}: {p.message} {p.fix}" for p in error.value.problems)


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("model_type", TYPES)
def test_a_tiny_model_runs_repeats_and_decodes_what_the_whole_text_gives(model_type: str):
    model = loaded(model_type)
    outputs = model.run(decode_steps=2)
    assert equal(outputs, model.run(decode_steps=2))
    assert all(bool(o.isfinite().all()) for o in outputs)
    rows = model.deployment.batch_size * (4 if model_type == "musicgen" else 1)
    assert [len(o) for o in outputs] == [5 * rows, rows, rows]
    assert not torch.equal(outputs[1], outputs[2])


def test_a_cached_step_equals_the_step_over_the_whole_text():
    model = loaded("llama")
    stepper = model.stepper
    tokens = stepper.prompt(6, seed=3)
    with torch.no_grad():
        whole, _ = stepper.step(model.module, tokens, State())
        _, state = stepper.step(model.module, tokens[:, :5], State())
        last, _ = stepper.step(model.module, tokens[:, 5:], state)
    torch.testing.assert_close(last[:, 0], whole[:, 5])


def test_before_decode_is_called_once_between_prefill_and_decode():
    model, lengths, marks = loaded("llama"), [], []
    hook = model.module.model.layers[0].register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    model.run(decode_steps=3, before_decode=lambda: marks.append(list(lengths)))
    hook.remove()
    assert marks == [[5]] and lengths == [5, 1, 1, 1]


def test_speculative_tokens_widen_the_step():
    outputs = loaded("llama", served={"next_n": 2}).run(decode_steps=1)
    assert len(outputs[1]) == 2 * 3


def test_full_size_is_on_meta_in_bf16_and_steps_with_the_deployments_batch():
    model = loaded("qwen3_moe", "full", {"batch_size": 3, "next_n": 1}, **SMALL)
    assert all(p.is_meta and p.dtype is torch.bfloat16 for p in model.module.parameters())
    assert all(b.is_meta for b in model.module.buffers())
    assert (model.root, model.layers, model.device.type) == ("model", "layers", "meta")
    assert model.decode_once().shape == (3 * 2, model.module.config.vocab_size)


def test_attention_is_eager_and_the_config_says_how_the_model_is_run():
    config = loaded("gemma3", "tiny", {"multi_stream": 1}).module.config
    for part in (config, config.text_config):
        assert part._attn_implementation == "eager"
        assert (part.exe_mode, part.enable_multi_stream) == ("ge_graph", 1)


@pytest.mark.parametrize("model_type", ["llama", "qwen3_next", "gemma4_text", "deepseek_v3", "mamba2"])
def test_a_context_extended_from_short_prompts_is_the_one_that_a_run_leaves(model_type: str):
    served = Deployment("unsharded", batch_size=2)
    tokens = 24
    tiny = loaded(model_type)
    tiny.stepper.deployment = served
    real = past_state(tiny.stepper, tokens)
    tiny.module.to("meta")
    twin = type(tiny.stepper)(tiny.module, served)
    assert shapes(past_state(twin, tokens).carried) == shapes(real.carried)


def shapes(value: object, depth: int = 0) -> object:
    """Shapes of all tensors and all counters below a cache."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, bool | int):
        return value
    if isinstance(value, dict):
        return {key: shapes(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shapes(item, depth + 1) for item in value]
    if hasattr(value, "__dict__") and depth < 6 and not hasattr(value, "model_type"):
        return {key: shapes(item, depth + 1) for key, item in vars(value).items() if not isinstance(item, type)}
    return None


def test_past_is_made_once_and_not_used_up():
    model = loaded("llama", "full", **SMALL)
    past = model.past()
    model.decode_once()
    assert model.past() is past
    assert past.carried["cache"].get_seq_length() == 4095


@pytest.mark.parametrize("model_type", TYPES)
def test_a_rebuilt_model_computes_the_same_on_the_same_weights(model_type: str, tmp_path: Path):
    model = loaded(model_type)
    sibling = sibling_of(model, tmp_path)
    try:
        rebuilt = model.rebuild(sibling, enable_prefetch=True)
        path = f"{model.root}.{model.layers}.0".strip(".")
        assert type(rebuilt.get_submodule(path)).__module__ == sibling.__name__
        ours, theirs = dict(model.module.named_parameters()), dict(rebuilt.named_parameters())
        assert ours.keys() == theirs.keys() and all(ours[name] is theirs[name] for name in ours)
        assert list(model.module.state_dict()) == list(rebuilt.state_dict())
        assert rebuilt.config.enable_prefetch and not getattr(model.module.config, "enable_prefetch", False)
        assert equal(model.run(decode_steps=1), model.run(rebuilt, decode_steps=1))
    finally:
        del sys.modules[sibling.__name__]


def sibling_of(model: TransformersModel, folder: Path):
    """The model's own file under another name in the same package."""
    file = folder / Path(str(model.python_module.__file__)).name
    file.write_bytes(Path(str(model.python_module.__file__)).read_bytes())
    spec = importlib.util.spec_from_file_location(f"{model.python_module.__name__}_sibling", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_model_whose_layers_are_of_another_file_is_rebuilt_around_them():
    model = loaded("sarvam_mla")
    assert model.python_module.__name__ == "transformers.models.deepseek_v3.modeling_deepseek_v3"
    assert equal(model.run(decode_steps=1), model.run(model.rebuild(model.python_module), decode_steps=1))


def test_a_file_without_the_class_can_not_rebuild():
    assert "cannot-rebuild" in refused(loaded("llama").rebuild, nn)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"attn_tp_size": 8, "o_proj_tp_size": 8, "world_size": 8}, "attn_tp_size 8, o_proj_tp_size 8, world_size 8"),
        ({"quant": "w8a8"}, "quant w8a8"),
        ({"role": "attention"}, "role attention"),
    ],
)
def test_a_sharded_or_quantised_deployment_is_refused(fields: dict, said: str):
    found = refused(loaded, "llama", "full", fields)
    assert "sharded-transformers-model" in found and said in found and "deployment=unsharded" in found


def test_a_context_that_the_position_table_does_not_have_is_refused():
    assert "1024 positions" in refused(loaded, "gpt2", "full")
    loaded("gpt2", "full", {"context_length": 1024}, n_layer=2)
    loaded("llama", "full", {"context_length": 8192}, num_hidden_layers=1)  # rotary: computed, not looked up


@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        ("gemma4_assistant", "shared_kv_states"),
        ("blt", "can't run on token ids alone"),
        ("lama", "Did you mean llama?"),
        ("t5", "no causal language model"),
    ],
)
def test_what_cannot_be_loaded_says_why(model_type: str, said: str):
    assert any(said in f"{p.message} {p.fix}" for p in load_problems(model_type))


def test_a_missing_package_is_named():
    if importlib.util.find_spec("timm"):
        pytest.skip("timm is installed")
    [problem] = load_problems("gemma3n")
    assert problem.code == "missing-package" and "timm" in problem.message


def test_a_type_that_loads_has_no_problems():
    assert load_problems("llama") == ()


def test_a_model_of_ours_has_no_folder():
    from models.loading import ModelSpec

    spec = load_spec("qwen3")
    mapping = {"name": "qwen3", "architecture": "qwen3", "config": dict(spec.config), "path": "x"}
    assert "bad-value" in refused(ModelSpec.from_mapping, mapping)


def test_meta_answers_as_ordinary_text_would():
    x = torch.zeros(3, 2, device="meta", dtype=torch.int64)
    with answers():
        assert bool((x == 0).all()) and not bool((x == 0).any()) and 5 not in x
        assert x.max().item() == 0 and isinstance(x.float().max().item(), float)
        assert torch.nonzero(x).shape == (6, 2) and [t.shape for t in torch.where(x > 0)] == [(6,), (6,)]
    real = torch.tensor([1, 0])
    with answers():
        assert real.max().item() == 1 and torch.nonzero(real).tolist() == [[0]] and not bool(real.all())


def test_random_numbers_of_the_process_are_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model = loaded("llama")
    model.run(decode_steps=1)
    copy.deepcopy(model.module)
    assert torch.equal(torch.get_rng_state(), before)
