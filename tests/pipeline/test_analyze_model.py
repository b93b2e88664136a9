"""`analyze model=... deployment=...` and `backend=replay`: from a profile to a recipe that runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.loading import load, load_deployment, load_spec
from models.trace import trace
from pipeline.cli import main
from pipeline.simulator.forecast import Baseline
from pipeline.simulator.machine import load_machine
from tests.pipeline.written_profile import write_profile

Run = Callable[..., tuple[int, dict[str, Any], str]]
SMALL = "model.config.num_hidden_layers=4"
MODEL = ("model=qwen3", SMALL, "deployment=unsharded", "hardware=atlas_a3")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps of Qwen3 with four layers, written from the simulator."""
    machine = load_machine("atlas_a3").for_mode("ge_graph")
    loaded = load(load_spec("qwen3", num_hidden_layers=4), load_deployment("unsharded"), "ge_graph", "full")
    workload = trace(loaded)
    step = Baseline(workload, machine, draws=0).step
    return write_profile(tmp_path_factory.mktemp("qwen3"), loaded, workload, step, machine, steps=5)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, dict[str, Any], str]:
        code = main([*words, "format=json"])
        captured = capsys.readouterr()
        return code, json.loads(captured.out), captured.err

    return call


def test_the_recipe_that_is_written_is_found_validated_and_run(run: Run, profile: Path, tmp_path: Path) -> None:
    code, data, _ = run("analyze", f"profile={profile}", *MODEL, "output=found")
    assert code == 0
    assert (tmp_path / "found/conf/recipe/qwen3/from_profile.yaml").read_text() == data["forecast"]["recipe"]["text"]
    folder = ("--config-dir", "found/conf", "recipe=qwen3/from_profile", SMALL)
    code, checked, _ = run("validate", *folder)
    assert code == 0
    assert {m["target"] for m in checked["matches"]} <= {t["target"] for t in data["forecast"]["recipe"]["targets"]}
    code, trial, _ = run("run", *folder, "verify.graph=false")
    assert code == 0
    assert trial["calls_observed"] == trial["calls_planned"] > 0


def test_every_candidate_is_forecast_at_every_size_and_gains_are_modelled(run: Run, profile: Path) -> None:
    _, data, _ = run("analyze", f"profile={profile}", *MODEL)
    forecast = data["forecast"]
    targets = {name for trial in forecast["alone"] for name in trial["targets"]}
    assert len(forecast["alone"]) == 5 * len(targets)
    assert {trial["gain"]["provenance"] for trial in forecast["alone"]} == {"modelled"}
    assert forecast["replay"]["measured"]["provenance"] == "measured"
    assert abs(forecast["replay"]["off"]) < 2
    assert forecast["replay"]["mapping"]["missing"] == []


def test_what_analyze_forecasts_is_what_a_replay_of_the_recipe_gives(run: Run, profile: Path) -> None:
    """To the digit, with equal draws: alone at a size, and the chosen targets together."""
    _, data, _ = run("analyze", f"profile={profile}", *MODEL, "output=found")
    forecast = data["forecast"]
    words = ("--config-dir", "found/conf", "recipe=qwen3/from_profile", SMALL, "hardware=atlas_a3", "backend=replay")
    words = (*words, f"profile={profile}", "backend.draws=64", "verify.graph=false", "verify.numerics=false")
    alone = next(t for t in forecast["alone"] if t["gain"]["value"] > 0 and 0.7 in t["targets"].values())
    ((name, share),) = alone["targets"].items()
    one = (f"recipe.prefetch.only=[{name}]", f"recipe.prefetch.targets.{name}.coefficient={share}")
    tried = [(alone["gain"], one), (forecast["together"][-1]["gain"], ())]
    for expected, more in tried:
        code, trial, _ = run("run", *words, *more)
        assert code == 0
        gain = trial["metrics"]["delta"]["step"]
        for end in ("value", "low", "high"):
            assert gain[end] == pytest.approx(expected[end], abs=1e-9), end


def test_all_of_the_recipe_validates_without_its_choice(run: Run, profile: Path) -> None:
    _, data, _ = run("analyze", f"profile={profile}", *MODEL, "output=found")
    words = ("--config-dir", "found/conf", "recipe=qwen3/from_profile", SMALL, "recipe.prefetch.only=null")
    code, checked, _ = run("validate", *words)
    assert code == 0, checked["problems"]
    assert len(checked["matches"]) == len(data["forecast"]["recipe"]["targets"])


def test_a_later_dependency_is_tried_at_the_best_size_of_the_first(run: Run, profile: Path) -> None:
    _, data, _ = run("analyze", f"profile={profile}", "hardware=atlas_a3")
    forecast, found = data["forecast"], data["phases"][0]["candidates"]
    later = {c["target"]["label"] for c in found if c["nearest"]["row"] != c["dependency"]["row"]}
    assert {name for t in forecast["moved"] for name in t["targets"]} == {f"{name} later" for name in later}
    for trial in forecast["moved"]:
        ((name, share),) = trial["targets"].items()
        sizes = [t for t in forecast["alone"] if name.removesuffix(" later") in t["targets"]]
        assert share in max(sizes, key=lambda t: t["gain"]["value"])["targets"].values()


def test_another_batch_than_the_profiled_one_is_told(run: Run, profile: Path) -> None:
    code, data, _ = run("analyze", f"profile={profile}", *MODEL, "deployment.batch_size=64")
    assert code == 0
    problem = next(p for p in data["problems"] if p["code"] == "another-batch")
    assert "0.0625 times the rows" in problem["message"]


def test_without_a_model_candidates_are_forecast_by_their_place_in_the_step(run: Run, profile: Path) -> None:
    _, data, _ = run("analyze", f"profile={profile}", "hardware=atlas_a3")
    assert data["forecast"]["recipe"] is None
    assert set(data["forecast"]["kernels"]) == {c["target"]["label"] for c in data["phases"][0]["candidates"]}


def test_the_report_has_the_forecast_in_both_languages(run: Run, profile: Path, tmp_path: Path) -> None:
    for language, heading in (("en", "## Forecast in the replay"), ("zh", "## 重放预测")):
        run("analyze", f"profile={profile}", *MODEL, f"output={language}", f"report.language={language}")
        text = (tmp_path / language / "report.md").read_text()
        assert heading in text
        assert "qwen3/from_profile" in text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("model=qwen", "deployment=unsharded"), "unknown-model"),
        (("model=qwen3",), "no-deployment"),
        (("deployment=unsharded",), "needs-model"),
        (("model=longcat_flash", "deployment=longcat_a3_ep128"), "profile-of-another-model"),
        (("model=qwen3", SMALL, "deployment=unsharded", "deployment.quant=w8a8"), "profile-of-another-model"),
        (("model=qwen3", "deployment=unsharded", "model.config.hidden_size=-1"), "bad-value"),
    ],
)
def test_what_can_not_be_mapped_is_refused(run: Run, profile: Path, words: tuple[str, ...], code: str) -> None:
    status, data, _ = run("analyze", f"profile={profile}", *words)
    assert status == 2
    assert code in [p["code"] for p in data["problems"]]


RECIPE = ("recipe=qwen3/decode_prefetch", SMALL, "deployment=unsharded", "hardware=atlas_a3", "verify.graph=false")


def test_a_sweep_over_a_replay(run: Run, profile: Path) -> None:
    words = ("-m", *RECIPE, "backend=replay", f"profile={profile}", "recipe.prefetch.coefficient=0.03,0.1")
    code, data, _ = run(*words)
    assert code == 0
    steps = {t["metrics"]["baseline"]["step"]["value"] for t in data["trials"]}
    assert len(steps) == 1
    assert {t["status"] for t in data["trials"]} == {"ok"}


def test_another_profile_is_another_trial(run: Run, profile: Path, tmp_path: Path) -> None:
    """The key holds the content of the profile's files, not their names."""
    words = (*RECIPE, "backend=replay")
    key = run(*words, f"profile={profile}")[1]["key"]
    copied = tmp_path / profile.name
    for file in profile.rglob("*"):
        if file.is_file():
            target = copied / file.relative_to(profile)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    assert run(*words, f"profile={copied}")[1]["key"] == key
    table = next(copied.rglob("kernel_details.csv"))
    table.write_text(table.read_text().replace("MatMulV3", "MatMulV2"))
    assert run(*words, f"profile={copied}")[1]["key"] != key


def test_what_is_wrong_with_the_profile_is_told_by_the_trial_too(run: Run, profile: Path, tmp_path: Path) -> None:
    table = tmp_path / "kernel_details.csv"
    lines = next(profile.rglob("kernel_details.csv")).read_text().splitlines()
    table.write_text("\n".join([*lines, "cut,off"]) + "\n")
    code, data, _ = run(*RECIPE, "backend=replay", f"profile={table}", "verify.numerics=false")
    assert code == 0
    assert "ragged-row" in [p["code"] for p in data["problems"]]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("backend=replay",), "no-profile"),
        (("backend=replay", "profile=nowhere"), "no-such-path"),
    ],
)
def test_a_replay_needs_a_profile(run: Run, words: tuple[str, ...], code: str) -> None:
    status, data, _ = run(*RECIPE, *words)
    assert status == 2
    assert code in [p["code"] for p in data["problems"]]


def test_a_profile_that_nothing_uses_is_told(run: Run, profile: Path) -> None:
    code, data, _ = run("validate", *RECIPE[:-1], f"profile={profile}")
    assert code == 0
    assert "profile-unused" in [p["code"] for p in data["problems"]]
