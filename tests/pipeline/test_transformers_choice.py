"""`model=hf/<model_type>` and `model=hf model.path=DIR` on the command line."""

import re
from pathlib import Path

import pytest

from models.problems import RefusedError
from pipeline.compose import CONF, GridPoint, compose_grid, hydra, recompose
from pipeline.environment import trial_key
from pipeline.experiment import build_experiment
from pipeline.listing import listing
from pipeline.overrides import read_overrides

ROOT = Path(__file__).parents[2]
RECIPE = "recipe=generic/mlp"


def compose(*tokens: str, folders: tuple[Path, ...] = (CONF,)) -> list[GridPoint]:
    overrides, problems = read_overrides(tokens)
    assert problems == []
    return compose_grid(overrides, True, folders)


def problems(*tokens: str) -> list[tuple[str, str]]:
    with pytest.raises(RefusedError) as refused:
        [point] = compose(RECIPE, *tokens)
        build_experiment(point.config, point.sources())
    return [(p.code, p.fix) for p in refused.value.problems]


def test_a_type_is_an_option_of_the_group_model():
    [point] = compose(RECIPE, "model=hf/gpt-sw3", "model.config.n_layer=4", "model.tiny.n_layer=3")
    assert point.choices["model"] == "hf/gpt-sw3"
    assert point.config["model"] == {
        "name": "hf/gpt-sw3",
        "architecture": "hf/gpt-sw3",
        "path": None,
        "config": {"n_layer": 4},
        "cache": "dynamic",
        "tiny": {"n_layer": 3},
    }
    assert point.sources()["model"] == CONF / "model" / "hf.yaml"


def test_types_can_be_swept():
    points = compose(RECIPE, "model=hf/llama,hf/qwen3,qwen3")
    assert [p.config["model"]["architecture"] for p in points] == ["hf/llama", "hf/qwen3", "qwen3"]
    assert [p.label for p in points] == ["model=hf/llama", "model=hf/qwen3", "model=qwen3"]


def test_recorded_overrides_compose_to_the_same_in_another_process():
    [point] = compose(RECIPE, "model=hf/llama", "model.config.num_hidden_layers=2")
    with hydra():
        config, problem = recompose(point.overrides, (CONF,))
    assert problem is None and config == point.config


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("a b, c = d", "{cwd}/a b, c = d"),
        ("'a b'", "{cwd}/a b"),
        ("./x", "{cwd}/x"),
        ("~/x", "{home}/x"),
        ("/x/${y}", "/x/${{y}}"),
        ("null", None),
    ],
)
def test_a_path_is_absolute_whatever_it_holds(
    typed: str, meant: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    [point] = compose(RECIPE, "model=hf", f"model.path={typed}")
    wanted = meant and meant.format(cwd=tmp_path, home=tmp_path / "home")
    assert point.config["model"]["path"] == wanted


@pytest.mark.parametrize(
    ("tokens", "code", "said"),
    [
        (["model=hf/lama"], "unknown-model-type", "Did you mean llama?"),
        (["model=hf/bert_something"], "unknown-model-type", "Did you mean bert?"),
        (["model=hf/t5"], "not-a-causal-lm", "list hf"),
        (["model=hf"], "no-checkpoint", "model.path=DIR"),
        (["model=hf/llama", "model.path=nowhere"], "no-checkpoint", "config.json"),
        (["model=hf/llama", "model.config.num_hidden_layer=4"], "unknown-key", "num_hidden_layers"),
        (["model=hf/llama", "model.tiny.n_layer=4"], "unknown-key", ""),
        (["model=qwen3", "model.path=x"], "bad-value", "model=hf"),
        (["model=qwen3", "model.cache=static"], "bad-value", "our own models are static"),
        (["model=hf/llama", "model.cache=paged"], "bad-type", "dynamic"),
    ],
)
def test_what_a_user_gets_wrong(tokens: list[str], code: str, said: str):
    [(found, fix)] = problems(*tokens)
    assert found == code and said in fix


def test_a_wrong_name_hides_no_other_problem():
    assert [code for code, _ in problems("model=hf/lama", "hardware=atlas_x")] == [
        "unknown-hardware",
        "unknown-model-type",
    ]


def test_a_recipe_that_names_no_deployment_gets_the_unsharded_one(tmp_path: Path):
    (tmp_path / "recipe").mkdir()
    text = (CONF / "recipe/generic/mlp.yaml").read_text()
    (tmp_path / "recipe/mine.yaml").write_text(text.replace("deployment: unsharded\n", ""))
    [point] = compose("recipe=mine", "model=hf/llama", folders=(tmp_path, CONF))
    assert point.choices["deployment"] == "unsharded"


def test_the_trial_key_follows_the_checkpoint(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    [point] = compose(RECIPE, "model=hf", f"model.path={tmp_path}")
    before = trial_key(point.config)
    assert trial_key(point.config) == before
    file.write_text('{"model_type": "llama", "num_hidden_layers": 3}')
    assert trial_key(point.config) != before


def test_a_folder_names_the_model_by_its_type(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    [point] = compose(RECIPE, "model=hf", f"model.path={tmp_path}")
    spec = build_experiment(point.config, point.sources()).model
    assert (spec.name, spec.architecture, spec.path) == ("hf/llama", "hf/llama", str(tmp_path))


def test_list_shows_the_types_when_asked():
    names = [entry["name"] for entry in listing(["hf"])["hf"]]
    assert "hf/llama" in names and len(names) > 150
    assert "hf" not in listing() and "hf" in [entry["name"] for entry in listing(["models"])["models"]]


def test_every_problem_code_is_explained():
    sources = [p.read_text() for p in (ROOT / "models" / "hf").glob("*.py") if not p.name.startswith("fused")]
    codes = {c for s in sources for c in re.findall(r'(?:"error"|"warning"|_refused\(|_error\()[,\s]*"([a-z-]+)"', s)}
    page = (ROOT / "docs" / "transformers_models.md").read_text()
    rows = re.findall(r"^\| (`[^|]*)\|", page.split("## Problems")[1], re.MULTILINE)
    explained = {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}
    assert len(codes) > 15 and codes <= explained
    assert explained - codes == {"unknown-key", "not-at-full-size"}  # of models.records and pipeline.full_size
