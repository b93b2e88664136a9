"""Sweeps: Hydra jobs that never take the sweep down, that are not run twice, and that leave a report."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline import outputs
from pipeline.ledger import Ledger
from pipeline.outputs import read_json
from tests.pipeline.cli_fixtures import RECIPE, App

GRID = ("-m", RECIPE, "recipe.prefetch.coefficient=0.5,0.7,1.0")
JSON = "format=json"


def coefficient(config: Mapping[str, Any]) -> float:
    return float(config["recipe"]["prefetch"]["coefficient"])


def fail_at(value: float, error: BaseException) -> Any:
    def on_trial(config: Mapping[str, Any]) -> None:
        if coefficient(config) == value:
            raise error

    return on_trial


def test_a_sweep_leaves_one_directory_per_trial_and_its_reports(app: App):
    data = app(*GRID, JSON).json
    sweep = Path(data["sweep_dir"])
    assert data["status"] == "ok" and sweep.parent.parent.name == "multirun"
    for trial in data["trials"]:
        place = Path(trial["output_dir"])
        assert place == sweep / trial["key"]
        assert {".hydra", "status.json", "environment.json", "plan.json", "metrics.json"} <= set(os.listdir(place))
        assert read_json(place / "status.json")["status"] == "done"
    assert {"ledger.jsonl", "results.csv", "report.md", "report.html", "gain.svg"} <= set(os.listdir(sweep))
    rows = list(csv.DictReader((sweep / "results.csv").open()))
    assert [row["coefficient"] for row in rows] == ["0.5", "0.7", "1.0"]
    assert [row["delta.step [%]"] for row in rows] == ["0.5", "0.7", "1.0"]
    html = (sweep / "report.html").read_text()
    assert html.count("<svg") == 2 and "modelled" in html and "router" in html
    ranking = (sweep / "report.md").read_text().split("## Ranking")[1].split("##")[0].splitlines()
    ranked = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ranking if line.startswith("| ")]
    assert [row[1] for row in ranked[-3:]] == ["coefficient=1.0", "coefficient=0.7", "coefficient=0.5"]
    assert [row[3] for row in ranked[-3:]] == ["0.00", "0.30", "0.50"]
    assert "<h2>Ranking</h2>" in html


def test_the_trials_configuration_is_in_plain_yaml(app: App):
    data = app(*GRID, JSON).json
    text = (Path(data["trials"][1]["output_dir"]) / ".hydra" / "config.yaml").read_text()
    assert "coefficient: 0.7" in text and "!!" not in text


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3), MemoryError()])
def test_a_failing_trial_does_not_take_the_sweep_down(app: App, error: BaseException):
    app.on_trial = fail_at(0.7, error)
    result = app(*GRID, JSON)
    assert result.code == 1 and result.json["status"] == "partial"
    assert [t["status"] for t in result.json["trials"]] == ["ok", "failed", "ok"]
    status = read_json(Path(result.json["trials"][1]["output_dir"]) / "status.json")
    assert status["status"] == "failed" and type(error).__name__ in status["error"] and status["stage"]
    assert "Traceback" in status["traceback"]


def test_a_sweep_whose_trials_all_fail_is_failed(app: App):
    app.status = "failed"
    result = app(*GRID, JSON)
    assert result.code == 1 and result.json["status"] == "failed"
    assert "compiles failed" in read_json(Path(result.json["trials"][0]["output_dir"]) / "status.json")["error"]


def test_a_single_run_that_fails_says_so(app: App):
    app.on_trial = fail_at(0.5, ValueError("boom"))
    result = app(RECIPE, JSON)
    assert result.code == 1 and result.json["status"] == "failed"
    assert read_json(Path(result.json["output_dir"]) / "status.json")["error"] == "ValueError: boom"


def test_points_that_mean_the_same_are_one_trial(app: App):
    assert len(app("-m", RECIPE, "recipe.prefetch.coefficient=0.5,0.50", JSON).json["trials"]) == 1


def test_a_finished_trial_is_not_run_again(app: App):
    first = app(*GRID, JSON).json
    again = app("-m", RECIPE, "recipe.prefetch.coefficient=0.5,0.7,0.9,1.0", JSON).json
    assert len(app.trials) == 4 and again["sweep_dir"] != first["sweep_dir"]
    assert [bool(t.get("reused")) for t in again["trials"]] == [True, True, False, True]
    copied = Path(again["trials"][0]["output_dir"])
    assert (copied / "plan.json").exists() and read_json(copied / "record.json")["output_dir"] == str(copied)


def test_trial_fresh_runs_it_again(app: App):
    app(*GRID)
    app(*GRID, "trial.fresh=true")
    assert len(app.trials) == 6


def test_a_failed_trial_is_run_again_when_the_sweep_is_resumed(app: App):
    app.on_trial = fail_at(0.7, ValueError("boom"))
    sweep = app(*GRID, JSON).json["sweep_dir"]
    app.on_trial = lambda config: None
    resumed = app(f"sweep.resume={sweep}", JSON)
    assert resumed.code == 0 and resumed.json["sweep_dir"] == sweep and resumed.json["status"] == "ok"
    assert [coefficient(c) for c in app.trials] == [0.5, 0.7, 1.0, 0.7]
    assert set(Ledger(Path(sweep)).states().values()) == {"done"}


def test_resuming_what_is_no_sweep_is_refused(app: App):
    result = app("-m", RECIPE, "sweep.resume=.", JSON)
    assert result.code == 2 and result.json["problems"][0]["code"] == "no-sweep-directory"


def test_fail_fast_starts_no_further_trial(app: App):
    app.on_trial = fail_at(0.5, ValueError("boom"))
    data = app(*GRID, "sweep.fail_fast=true", JSON).json
    assert [t["status"] for t in data["trials"]] == ["failed", "queued", "queued"] and len(app.trials) == 1


def test_a_trial_that_takes_too_long_fails(app: App):
    app.on_trial = lambda config: time.sleep(5)
    result = app(RECIPE, "trial.timeout=0.2", JSON)
    assert result.code == 1 and "trial.timeout" in result.json["error"]


def test_an_interrupted_sweep_goes_on_with_the_same_command(app: App):
    app.on_trial = fail_at(0.7, KeyboardInterrupt())
    assert app(*GRID).code == 1
    app.on_trial = lambda config: None
    assert app(*GRID, JSON).json["status"] == "ok"
    assert [coefficient(c) for c in app.trials] == [0.5, 0.7, 0.7, 1.0]


def test_a_disk_that_fills_up_costs_neither_the_results_nor_a_traceback(app: App, monkeypatch: pytest.MonkeyPatch):
    write = outputs.write_text

    def full(path: Path, text: str) -> None:
        if app.trials and coefficient(app.trials[-1]) == 0.7:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, text)

    monkeypatch.setattr(outputs, "write_text", full)
    result = app(*GRID, JSON)
    assert result.code == 1 and result.json["status"] == "partial" and "No space left" in result.err
    assert [t["status"] for t in result.json["trials"]] == ["ok", "failed", "failed"]
    assert "Traceback" not in result.err


def test_a_single_run_on_a_full_disk_says_so(app: App, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(outputs, "write_text", full)
    result = app(RECIPE, JSON)
    assert result.code == 1 and "No space left" in result.json["error"] and "Traceback" not in result.err


def test_an_interrupted_sweep_reports_what_is_finished(app: App):
    app.on_trial = fail_at(0.7, KeyboardInterrupt())
    result = app(*GRID, JSON)
    assert result.code == 1 and result.json["status"] == "partial"
    assert [t["status"] for t in result.json["trials"]] == ["ok", "failed", "queued"]
    sweep = Path(result.json["sweep_dir"])
    assert f"sweep.resume={os.path.relpath(sweep)}" in result.err
    assert {"results.csv", "report.md", "report.html"} <= set(os.listdir(sweep))
    assert not Path(result.json["trials"][2]["output_dir"]).exists()
    app.on_trial = lambda config: None
    assert app(f"sweep.resume={sweep}", JSON).json["status"] == "ok"
    assert [coefficient(c) for c in app.trials] == [0.5, 0.7, 0.7, 1.0]


def test_an_interrupted_sweep_still_has_its_table(app: App):
    app.on_trial = fail_at(0.7, KeyboardInterrupt())
    result = app(*GRID)
    assert "0.5" in result.out and "improved" in result.out and "report.md" in result.out


def test_a_sweep_whose_process_was_killed_resumes(app: App):
    """The real thing: kill -9 in the middle of the second trial, then resume in this process."""
    code = (
        "import sys, time, pytest; sys.path.insert(0, sys.argv[1])\n"
        "from tests.pipeline import cli_fixtures as f\n"
        "patch = pytest.MonkeyPatch(); made = f.App(None, None, None, [])\n"
        "made.on_trial = lambda c: c['recipe']['prefetch']['coefficient'] == 0.7 and time.sleep(60)\n"
        "f.install(patch, made)\n"
        "f.main(sys.argv[2:])\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    words = [sys.executable, "-c", code, root, *GRID, "--config-dir", str(app.conf)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    sweep = None
    while time.monotonic() < deadline:
        sweep = next(iter((app.folder / "outputs" / "multirun").glob("*/*/ledger.jsonl")), None)
        if sweep and list(Ledger(sweep.parent).states().values()) == ["done", "running", "queued"]:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert sweep is not None and list(Ledger(sweep.parent).states().values()) == ["done", "running", "queued"]
    resumed = app(f"sweep.resume={sweep.parent}", JSON)
    assert resumed.code == 0 and [t["status"] for t in resumed.json["trials"]] == ["ok"] * 3
    assert [coefficient(c) for c in app.trials] == [0.7, 1.0]


def test_every_line_of_the_ledger_is_json_with_a_state(app: App):
    sweep = app(*GRID, JSON).json["sweep_dir"]
    events = [json.loads(line) for line in (Path(sweep) / "ledger.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events] == ["sweep", *["trial"] * 9, "end"]
    assert [e["state"] for e in events[1:-1]] == ["queued"] * 3 + ["running", "done"] * 3
