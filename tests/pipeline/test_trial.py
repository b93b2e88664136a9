"""A trial of the committed LongCat-Flash recipe, from the command line to the last file, with nothing replaced."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import trial
from pipeline.memo import MEMO
from tests.pipeline.real_conf import SMALL, call, files, prepared
from transforms import source

MODELS = Path(trial.__file__).parent.parent


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("trial")
    return trial.run_trial(prepared(*SMALL), directory, ["npu-recipes", "run", *SMALL]), directory


def test_every_file_of_the_output_directory_is_there(record):
    _, directory = record
    assert {
        "plan.json",
        "patch.diff",
        "verification.json",
        "metrics.json",
        "timeline.json",
        "report.md",
        "run_on_npu.py",
        "transformed/models/longcat_flash.py",
    } <= files(directory)


def test_the_tiny_model_makes_every_planned_call(record):
    found, _ = record
    assert found.calls_observed == found.calls_planned == 30  # 3 layers: 11 targets, 3 of them not in the last layer
    assert {name: rung.status for name, rung in found.verification.items()} == {
        "compiles": "passed",
        "numerics": "passed",
        "graph": "not_run",
        "performance": "passed",
    }


def test_the_json_of_run_has_the_documented_keys(record):
    data = record[0].to_json()
    assert {"output_dir", "status", "verification", "verdict", "metrics", "targets", "calls_planned"} <= set(data)
    for place in (
        data["metrics"]["baseline"]["step"],
        data["metrics"]["optimized"]["step"],
        data["metrics"]["delta"]["step"],
        data["metrics"]["baseline"]["throughput"],
        data["metrics"]["optimized"]["throughput"],
        data["metrics"]["physical_limit"],
    ):
        assert set(place) == {"value", "unit", "low", "high", "provenance"}
        assert place["provenance"] == "modelled"
    assert data["verdict"]["outcome"] in ("improved", "undecided", "worse")
    json.dumps(data)


def test_the_patch_applies_to_the_pristine_file_and_comes_back(record, tmp_path: Path):
    _, directory = record
    work = tmp_path / "models"
    work.mkdir()
    pristine = (MODELS / "models" / "longcat_flash.py").read_bytes()
    (work / "longcat_flash.py").write_bytes(pristine)
    patch = directory / "patch.diff"
    subprocess.run(["git", "apply", "--check", patch], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", patch], cwd=tmp_path, check=True)
    written = (directory / "transformed" / "models" / "longcat_flash.py").read_bytes()
    assert (work / "longcat_flash.py").read_bytes() == written != pristine
    subprocess.run(["git", "apply", "-R", patch], cwd=tmp_path, check=True)
    assert (work / "longcat_flash.py").read_bytes() == pristine


def test_wrap_and_source_give_the_same_forecast_and_calls(record, tmp_path: Path):
    found, _ = record
    wrapped = trial.run_trial(prepared(*SMALL, "transform=wrap"), tmp_path)
    assert wrapped.calls_observed == found.calls_observed
    assert wrapped.verification["numerics"].status == "passed"
    assert wrapped.assessment is not None and found.assessment is not None
    assert wrapped.assessment.metrics == found.assessment.metrics
    assert wrapped.diff == "" and not (tmp_path / "patch.diff").exists()


def test_the_next_trial_says_what_it_reused(record, tmp_path: Path):
    again = trial.run_trial(prepared(*SMALL, "recipe.prefetch.coefficient=0.7"), tmp_path)
    assert "recorded calls of a tiny decode step" in again.reused
    assert "simulated baseline with all its draws" in again.reused


def test_a_transform_that_does_nothing_fails_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    rewrite = source.rewrite

    def nothing(*args):
        result = rewrite(*args)
        return replace(result, after=result.before, diff="")

    monkeypatch.setattr(source, "rewrite", nothing)
    code, data = call(capsys, "run", *SMALL, f"output={tmp_path}")
    assert code == 1 and data["status"] == "failed"
    assert data["verification"]["numerics"]["status"] == "failed"
    assert data["verdict"]["outcome"] == "failed"
    assert json.loads((Path(data["output_dir"]) / "status.json").read_text())["status"] == "failed"


def test_a_stage_that_crashes_is_named_with_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(trial, "_assess", lambda *a: 1 / 0)
    code, data = call(capsys, "run", *SMALL, f"output={tmp_path}")
    status = json.loads((Path(data["output_dir"]) / "status.json").read_text())
    assert code == 1 and status["stage"] == "forecast"
    assert "ZeroDivisionError" in status["error"] and "Traceback" in status["traceback"]


def test_memo_holds_a_few_of_each_kind():
    made = []
    for n in range(10):
        MEMO.get("test kind", str(n), lambda n=n: made.append(n))
    MEMO.get("test kind", "9", lambda: made.append("again"))
    MEMO.get("test kind", "0", lambda: made.append("again"))
    assert made == [*range(10), "again"]
