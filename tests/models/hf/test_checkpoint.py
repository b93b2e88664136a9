"""A checkpoint folder made here: its config.json, its safetensors files, and whatever can be wrong with them."""

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.hf import checkpoint
from models.hf.safetensors_files import INDEX, read_files
from models.loading import SEEDED, LoadedModel, ModelSpec, load, load_deployment, load_spec
from models.problems import Problem, RefusedError
from pipeline.model_files import model_files


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny llama in one file, and in several with an index."""
    model = load(load_spec("hf/llama"), load_deployment("unsharded"), "eager", "tiny").module
    folders = {name: tmp_path_factory.mktemp("checkpoints") / name for name in ("one = whole", "parts")}
    model.save_pretrained(folders["one = whole"])
    model.save_pretrained(folders["parts"], max_shard_size="100KB")
    return {"one": folders["one = whole"], "parts": folders["parts"]}


@pytest.fixture
def one(saved: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved["one"], tmp_path / "a = b, c"))


@pytest.fixture
def parts(saved: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved["parts"], tmp_path / "parts"))


def spec(folder: Path, **fields: object) -> ModelSpec:
    return ModelSpec.from_mapping({"name": "hf", "architecture": "hf", "config": {}, "path": str(folder), **fields})


def loaded(folder: Path, size: str = "tiny", **fields: object) -> LoadedModel:
    return load(spec(folder, **fields), load_deployment("unsharded"), "eager", size)  # type: ignore[arg-type]


def problems(folder: Path, **fields: object) -> list[Problem]:
    with pytest.raises(RefusedError) as error:
        loaded(folder, **fields)
    return list(error.value.problems)


def edit(folder: Path, **fields: object) -> None:
    """Change fields of config.json; None takes one out."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def rewrite_header(file: Path, change) -> None:
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


@pytest.mark.parametrize("kind", ["one", "parts"])
def test_numerics_run_on_the_checkpoints_own_weights(saved: dict[str, Path], kind: str):
    from safetensors.torch import load_file

    model = loaded(saved[kind])
    assert (model.spec.name, model.weights) == ("hf/llama", "the checkpoint's own weights")
    stored = {k: v for file in saved[kind].glob("*.safetensors") for k, v in load_file(file).items()}
    state = model.module.state_dict()
    assert stored.keys() <= state.keys() and all(torch.equal(state[name], stored[name]) for name in stored)
    assert len(model.run(decode_steps=1)) == 2


def test_full_size_reads_no_weights_and_says_which_are_used(one: Path):
    model = loaded(one, "full")
    assert all(p.is_meta for p in model.module.parameters())
    assert [(p.code, p.severity) for p in model.problems] == [("own-weights", "warning")]


def test_without_safetensors_the_tiny_model_is_used_and_said(one: Path):
    (one / "model.safetensors").rename(one / "pytorch_model.bin")
    assert loaded(one).weights == SEEDED
    [problem] = loaded(one, "full").problems
    assert problem.code == "seeded-weights" and "pytorch_model.bin" in problem.message


def test_a_large_checkpoint_takes_the_tiny_model_and_its_broken_files_are_warnings(
    parts: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checkpoint, "MOST_VALUES", 1000)
    sorted(parts.glob("*.safetensors"))[0].unlink()
    found = loaded(parts, "full").problems
    assert [(p.code, p.severity) for p in found] == [("seeded-weights", "warning"), ("missing-shard", "warning")]
    assert loaded(parts).weights == SEEDED


def test_a_tiny_overlay_asks_for_the_tiny_model(parts: Path):
    sorted(parts.glob("*.safetensors"))[0].unlink()
    model = loaded(parts, tiny={"num_hidden_layers": 3})
    assert model.weights == SEEDED and len(model.module.model.layers) == 3


def test_all_missing_and_truncated_files_are_named_at_once(parts: Path):
    first, second, third = sorted(parts.glob("*.safetensors"))[:3]
    first.unlink()
    second.write_bytes(second.read_bytes()[:-7])
    third.write_bytes(third.read_bytes()[:20])
    found = problems(parts)
    assert [p.code for p in found] == ["missing-shard", "truncated-file", "truncated-file"]
    assert first.name in found[0].message and found[1].file == str(second) and found[2].file == str(third)
    assert all("model.tiny" in p.fix for p in found)


@pytest.mark.parametrize("cut", [0, 4, 9])
def test_a_file_that_ends_in_its_header_is_truncated(one: Path, cut: int):
    file = one / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    assert [p.code for p in problems(one)] == ["truncated-file"]


def test_a_file_of_another_kind_is_refused(one: Path):
    (one / "model.safetensors").write_bytes(b"PK\x03\x04" + b"\xff" * 100)
    assert [p.code for p in problems(one)] == ["not-safetensors"]
    (one / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]")
    assert [p.code for p in problems(one)] == ["not-safetensors"]


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I8", "U8"])
def test_weights_of_a_dtype_that_is_not_read_are_refused(one: Path, dtype: str):
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite_header(one / "model.safetensors", lambda header: header[name].update(dtype=dtype))
    [problem] = problems(one)
    assert problem.code == "wrong-dtype" and name in problem.message and dtype in problem.message


def test_a_weight_that_is_not_stored_is_named(one: Path):
    from safetensors.torch import load_file, save_file

    weights = load_file(one / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, one / "model.safetensors", {"format": "pt"})
    [problem] = problems(one)
    assert problem.code == "missing-weight" and "model.layers.0.mlp.up_proj.weight" in problem.message


def test_weights_of_other_shapes_are_refused(one: Path):
    [problem] = problems(one, config={"intermediate_size": 96})
    assert problem.code == "cannot-load-weights" and "LlamaForCausalLM" in problem.message


def test_fewer_layers_than_stored_run_with_the_first_ones(one: Path):
    model = loaded(one, config={"num_hidden_layers": 1})
    assert model.weights != SEEDED and len(model.module.model.layers) == 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "not-json"),
        ("[]", "not-json"),
        ('{"weight_map": 3}', "not-json"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "not-json"),
        ('{"weight_map": {"a": "x.safetensors"}}', "missing-shard"),
    ],
)
def test_an_index_that_can_not_be_followed(parts: Path, text: str, code: str):
    (parts / INDEX).write_text(text)
    assert [p.code for p in problems(parts)] == [code]


@given(st.binary(max_size=64))
def test_no_content_of_a_file_is_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: bytes):
    folder = tmp_path_factory.mktemp("any")
    (folder / "model.safetensors").write_bytes(data)
    assert [p.code for p in read_files(folder).problems] in (["truncated-file"], ["not-safetensors"], [])


def test_a_quantised_checkpoint_is_loaded_in_bf16_and_said(one: Path):
    edit(one, quantization_config={"quant_method": "fp8"})
    assert "quantisation-ignored" in [p.code for p in loaded(one, "full").problems]


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"model_type": None}, "no-model-type", "model_type"),
        ({"model_type": "lama"}, "unknown-model-type", "Did you mean llama?"),
        ({"model_type": "t5"}, "not-a-causal-lm", "t5"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}, "remote-code", "never run"),
        ({"auto_map": {"AutoConfig": "c.C"}, "model_type": "my_own"}, "remote-code", "no model type 'my_own'"),
        ({"hidden_size": -1, "num_attention_heads": 3}, "bad-model-config", "LlamaConfig"),
    ],
)
def test_a_config_json_that_can_not_be_used(one: Path, fields: dict, code: str, said: str):
    edit(one, **fields)
    [problem] = problems(one)
    assert problem.code == code and said in f"{problem.message} {problem.fix}"


def test_code_of_a_checkpoint_is_not_run(one: Path):
    (one / "modeling_x.py").write_text("raise SystemExit('it ran')\n")
    edit(one, auto_map={"AutoModelForCausalLM": "modeling_x.X", "AutoConfig": "modeling_x.C"})
    [problem] = problems(one)
    assert problem.code == "remote-code" and "remove `auto_map`" in problem.fix


@pytest.mark.parametrize("text", ["{", "[1]", '"a"', "\x00"])
def test_a_config_json_that_is_none(one: Path, text: str):
    (one / "config.json").write_text(text)
    assert [p.code for p in problems(one)] == ["not-json"]


def test_folders_that_are_none(tmp_path: Path):
    assert [p.code for p in problems(tmp_path / "nowhere")] == ["no-checkpoint"]
    assert [p.code for p in problems(tmp_path)] == ["no-config-json"]
    (tmp_path / "file").write_text("x")
    [problem] = problems(tmp_path / "file")
    assert problem.code == "no-checkpoint" and "is a file" in problem.message
    (tmp_path / "below").mkdir()
    (tmp_path / "below/config.json").write_text("{}")
    assert "below" in problems(tmp_path)[0].fix


def test_a_named_type_must_be_that_of_the_folder(one: Path):
    [problem] = problems(one, name="hf/qwen3", architecture="hf/qwen3")
    assert problem.code == "another-model-type" and "llama" in problem.message
    assert loaded(one, architecture="hf/llama").spec.architecture == "hf/llama"


def config(folder: Path | None, model_type: str = "") -> dict:
    return {"model": {"architecture": f"hf/{model_type}".strip("/"), "path": str(folder) if folder else None}}


def test_the_files_that_decide_a_model_are_its_source_and_its_checkpoint(one: Path):
    files = model_files(config(one))
    assert "transformers/models/llama/modeling_llama.py" in files
    assert {"checkpoint/config.json", "checkpoint/model.safetensors"} <= files.keys()
    source = model_files(config(None, "llama"))
    assert source == {name: value for name, value in files.items() if name.startswith("transformers/")}
    assert model_files({"model": {"architecture": "qwen3"}}) == {}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_changed_file_changes_its_hash(one: Path, name: str):
    before = model_files(config(one))
    file = one / name
    file.write_bytes(file.read_bytes() + b" ")
    after = model_files(config(one))
    assert {key for key in before if before[key] != after[key]} == {f"checkpoint/{name}"}


def test_a_copied_checkpoint_is_the_same(one: Path, tmp_path: Path):
    assert model_files(config(one)) == model_files(config(Path(shutil.copytree(one, tmp_path / "copy"))))


def test_files_of_a_composite_model_hold_its_parts():
    files = model_files(config(None, "gemma3"))
    assert any("siglip" in name for name in files) and any("gemma3/modeling_gemma3" in name for name in files)
