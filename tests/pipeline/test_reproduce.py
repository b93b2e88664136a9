"""`reproduce DIR`: the same, or it says what was edited."""

import json
from pathlib import Path

import pytest

from pipeline import reproduce
from pipeline.cli import main
from tests.pipeline.cli_fixtures import RECIPE, App

JSON = "format=json"


@pytest.fixture
def trial(app: App) -> Path:
    return Path(app(RECIPE, "recipe.prefetch.coefficient=0.7", JSON).json["output_dir"])


def differences(app: App, trial: Path) -> list[str]:
    result = app("reproduce", str(trial), JSON)
    assert result.code == 1 and result.json["same"] is False
    return [d["what"] for d in result.json["differences"]]


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_an_untouched_trial_is_the_same(app: App, trial: Path):
    result = app("reproduce", str(trial), JSON)
    assert result.code == 0 and result.json["same"] is True and result.json["differences"] == []
    assert len(app.trials) == 2


def test_one_trial_inside_a_sweep(app: App):
    data = app("-m", RECIPE, "recipe.prefetch.coefficient=0.5,0.7", JSON).json
    assert app("reproduce", data["trials"][1]["output_dir"], JSON).json["same"] is True


def test_a_whole_sweep(app: App):
    data = app("-m", RECIPE, "recipe.prefetch.coefficient=0.5,0.7", JSON).json
    found = app("reproduce", data["sweep_dir"], JSON).json
    assert found["same"] is True and len(found["trials"]) == 2


def test_the_config_folders_of_the_trial_are_found_again(app: App, trial: Path, capsys: pytest.CaptureFixture[str]):
    noted = json.loads((trial / "environment.json").read_text())
    assert noted["config_dirs"] == [str(app.conf)] and f"run --config-dir {app.conf} {RECIPE}" in noted["command"]
    capsys.readouterr()
    assert main(["reproduce", str(trial), JSON]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


def test_an_edited_configuration(app: App, trial: Path):
    edit(trial / ".hydra/config.yaml", "coefficient: 0.7", "coefficient: 0.8")
    assert differences(app, trial)[0] == "config"


def test_an_edited_recipe(app: App, trial: Path):
    edit(app.conf / "recipe/toy/decode.yaml", "weight: layers.{i}.router", "weight: layers.{i}.other")
    found = differences(app, trial)
    assert set(found) == {"recipe"} and len(found) == 2


def test_an_edited_recipe_that_another_one_inherits(app: App):
    trial = Path(app("recipe=toy/child", JSON).json["output_dir"])
    edit(app.conf / "recipe/toy/decode.yaml", "weight: layers.{i}.router", "weight: layers.{i}.other")
    assert differences(app, trial) == ["recipe"]


def test_an_edited_source(app: App, trial: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reproduce, "source_hashes", lambda: {"models/loading.py": "2" * 16})
    result = app("reproduce", str(trial), JSON)
    assert result.code == 1 and [d["what"] for d in result.json["differences"]] == ["source"]
    assert "models/loading.py" in result.json["differences"][0]["where"]


@pytest.mark.parametrize(
    ("file", "before", "after", "what"),
    [("metrics.json", "99.3", "99.3000001", "metrics"), ("patch.diff", "router", "ruter", "diff")],
)
def test_an_edited_result(app: App, trial: Path, file: str, before: str, after: str, what: str):
    edit(trial / file, before, after)
    assert differences(app, trial) == [what]


def test_another_plan(app: App, trial: Path):
    (trial / "plan.json").write_text(json.dumps({"hash": "0"}))
    assert differences(app, trial) == ["plan"]


def test_other_versions_are_listed_beside_and_do_not_count(app: App, trial: Path):
    recorded = json.loads((trial / "environment.json").read_text())
    recorded["versions"]["torch"] = "1.0"
    (trial / "environment.json").write_text(json.dumps(recorded))
    edit(trial / "metrics.json", "99.3", "99.30000000000001")
    result = app("reproduce", str(trial), JSON)
    assert result.code == 0 and result.json["same"] is True
    [difference] = result.json["environment_differences"]
    assert difference["before"] == "1.0" and "torch" in difference["where"]


def test_with_the_same_versions_the_last_bit_counts(app: App, trial: Path):
    edit(trial / "metrics.json", "99.3", "99.30000000000001")
    assert differences(app, trial) == ["metrics"]


def test_what_is_no_trial_is_refused(app: App):
    for place in (".", "nowhere"):
        result = app("reproduce", place, JSON)
        assert result.code == 2 and result.json["problems"][0]["code"] == "no-trial"
    assert app("reproduce", JSON).json["problems"][0]["code"] == "bad-arguments"


def test_reproducing_writes_nothing_here(app: App, trial: Path):
    before = app.written
    app("reproduce", str(trial))
    assert app.written == before


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_metrics_that_cannot_be_read_are_one_difference(app: App, trial: Path, text: str | None):
    (trial / "metrics.json").unlink()
    if text is not None:
        (trial / "metrics.json").write_text(text)
    assert differences(app, trial) == ["metrics"]
