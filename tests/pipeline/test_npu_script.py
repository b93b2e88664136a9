"""The standalone script: it runs on Python 3.9 without us, and tells gains, no gains and wrong outputs apart."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pipeline.report.run_on_npu as script
from pipeline.report import npu_script
from tests.pipeline.test_report import record

MODEL = """
import time
import torch

def build(enable_prefetch, share=None):
    generator = torch.Generator().manual_seed(0)
    model = share if share is not None else torch.nn.Linear(64, 64)
    return model, (torch.randn(4, 64, generator=generator),)

def slower(enable_prefetch):
    model = torch.nn.Identity()
    def call(x):
        time.sleep(0.004 if enable_prefetch else 0.002)
        return model(x)
    return call, {"x": torch.ones(4)}

def faster(enable_prefetch):
    model, inputs = slower(not enable_prefetch)
    return model, lambda step: (torch.full((4,), float(step)),)

def other_outputs(enable_prefetch):
    return (lambda x: x + enable_prefetch * 1e-3), torch.ones(4)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "a model.py"
    path.write_text(MODEL)
    return path


def run(tmp_path: Path, *arguments: str) -> tuple[int, Any]:
    output = tmp_path / "result.json"
    code = script.main([*arguments, "--output", str(output)])
    return code, json.loads(output.read_text()) if output.exists() else None


def compare(tmp_path: Path, model: Path, function: str, *more: str) -> tuple[int, Any]:
    options = ("--device", "cpu", "--blocks", "12", "--steps", "2", "--warmup", "1", *more)
    return run(tmp_path, "--build", f"{model}:{function}", *options)


def answers(result: Any) -> dict[str, str]:
    return {point["id"]: point["answer"] for point in result["checklist"]}


def test_a_slower_side_is_degraded_and_a_faster_one_improved(tmp_path: Path, model: Path) -> None:
    code, result = compare(tmp_path, model, "slower")
    assert code == 0 and result["outcome"] == "degraded" and result["provenance"] == "measured"
    assert result["delta"]["step"]["high"] < 0 and result["delta"]["step"]["n"] == 3
    assert answers(result)["critical_path"] == "no" and answers(result)["same_numbers"] == "yes"
    code, result = compare(tmp_path, model, "faster")
    assert code == 0 and result["outcome"] == "improved" and result["success"] is True
    assert result["optimized"]["step"]["value"] < result["baseline"]["step"]["value"]
    assert "says nothing about an NPU" in result["device"]


def test_shared_weights_give_the_same_outputs(tmp_path: Path, model: Path) -> None:
    code, result = compare(tmp_path, model, "build")
    assert code == 0 and answers(result)["same_numbers"] == "yes"


def test_other_outputs_fail_whatever_the_times(tmp_path: Path, model: Path) -> None:
    code, result = compare(tmp_path, model, "other_outputs")
    assert code == 1 and result["outcome"] == "failed"
    assert "outputs differ by up to 0.001" in result["reason"]
    code, result = compare(tmp_path, model, "other_outputs", "--tolerance", "0.01")
    assert code == 0 and answers(result)["same_numbers"] == "yes"


def kernels(path: Path, **times: tuple[float, float]) -> str:
    rows = [f"k{i},{name},{value},\n" for name, both in times.items() for i, value in enumerate(both)]
    path.write_text("﻿Name,Type,Duration(us),Wait Time(us)\n" + "".join(rows) + "cut,off")
    return str(path)


def test_kernel_times_answer_the_points_about_targets_and_windows(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(script.SETTINGS, "targets", [{"name": "t", "op": "QuantBatchMatmul", "max_size": 1}])
    before = kernels(tmp_path / "off.csv", QuantBatchMatmulV3=(14.0, 16.0), RmsNorm=(2.0, 2.0))
    after = kernels(tmp_path / "on.csv", QuantBatchMatmulV3=(9.0, 11.0), RmsNorm=(2.2, 2.2))
    _, result = compare(tmp_path, model, "build", "--kernels-baseline", before, "--kernels-optimized", after)
    assert answers(result)["target_faster"] == "yes" and answers(result)["window_stable"] == "no"
    details = {p["id"]: p["detail"] for p in result["checklist"]}
    assert details["target_faster"] == "QuantBatchMatmulV3 15.00 -> 10.00 us"
    assert details["window_stable"] == "RmsNorm 2.00 -> 2.20 us"
    assert any("smaller max_size" in step for step in result["next"])


def test_without_kernel_times_these_points_are_unknown(tmp_path: Path, model: Path) -> None:
    _, result = compare(tmp_path, model, "build")
    assert answers(result)["target_faster"] == answers(result)["window_stable"] == "unknown"


def test_commands_are_compared_by_the_latency_they_print(tmp_path: Path) -> None:
    code, result = run(
        tmp_path, "--baseline", "echo decode 11.0 ms", "--optimized", "echo decode 10.0 ms",
        "--latency", r"decode ([0-9.]+) ms", "--blocks", "8",
    )  # fmt: skip
    assert code == 0 and result["outcome"] == "improved"
    assert result["baseline"]["step"]["value"] == 11_000.0
    assert result["delta"]["step"]["value"] == pytest.approx(100 / 11)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --build"),
        (["--build", "nowhere.py:build", "--device", "cpu"], "no such file"),
        (["--build", "json:nothing", "--device", "cpu"], "json has no function nothing"),
        (["--build", "x.py:f", "--blocks", "6"], "multiple of 4"),
        (["--build", "x.py:f", "--kernels-baseline", "a"], "go together"),
        (["--build", "x.py:f", "--profile", "p", "--device", "cpu"], "--profile needs an NPU"),
        (["--baseline", "a", "--optimized", "b", "--latency", "ms"], "exactly one group"),
    ],
)
def test_wrong_use_is_told_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code, result = run(tmp_path, *arguments)
    assert code == 2 and result is None
    assert words in capsys.readouterr().err


def test_a_command_that_fails_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(tmp_path, "--baseline", "false", "--optimized", "false", "--latency", "(x)")
    assert code == 1 and "`false` ended with 1" in capsys.readouterr().err


def test_linear_drift_of_the_machine_is_no_gain() -> None:
    blocks: dict[bool, list[list[float]]] = {False: [], True: []}
    for number in range(16):  # every block is 1 % slower than the one before; both sides are equal
        blocks[number % 4 in (1, 2)].append([100.0 + number])
    options = script.arguments(["--blocks", "16"])
    sides = type("Sides", (), {"device": "test"})
    result = script.judge(options, sides, (True, ""), blocks, None)
    assert result["delta"]["step"]["value"] == pytest.approx(0.0)
    assert result["outcome"] == "no_significant_difference"


def test_the_interval_is_students_t() -> None:
    from scipy import stats

    values = [1.0, 2.0, 4.0, 3.0, 2.5]
    found = script.interval(values, "%")
    low, high = stats.t.interval(0.95, 4, loc=2.5, scale=stats.sem(values))
    assert (found["low"], found["high"]) == (pytest.approx(low, rel=1e-3), pytest.approx(high, rel=1e-3))
    for n in (40, 100, 1000):
        assert 1.96 + 2.5 / (n - 1) == pytest.approx(stats.t.ppf(0.975, n - 1), rel=2e-3)


def pythons_3_9() -> list[str]:
    """A Python 3.9 that runs, if this machine has one (a name on the path may be a shim without anything behind it)."""
    found = shutil.which("python3.9")
    works = found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0
    return [found] if found and works else []


def test_the_written_script_carries_the_trial_and_is_python_3_9(tmp_path: Path) -> None:
    text = npu_script(record())
    tree = ast.parse(text, feature_version=(3, 9))
    names = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {(n.module or "").split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not names & {"pipeline", "models", "transforms", "numpy", "scipy"}
    path = tmp_path / "run_on_npu.py"
    path.write_text(text)
    command = ["--baseline", "echo 5 ms", "--optimized", "echo 5 ms", "--latency", "([0-9]+) ms", "--blocks", "8"]
    for python in (sys.executable, *pythons_3_9()):
        done = subprocess.run([python, "-I", path, *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "small/test on small" in done.stdout
        assert "forecast       +11.40 %" in done.stdout and "(modelled)" in done.stdout
        result = json.loads((tmp_path / "npu_result.json").read_text())
        assert result["plan_hash"] == record().plan.hash and result["outcome"] == "no_significant_difference"
