"""`analyze` on public profiler outputs, which lie beside the checkout: the right answer, or the right refusal."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import main

REAL = Path(__file__).resolve().parents[3] / "shared" / "profiles"
CNN = "msinsight_alexnet_train_2card"
LLM = "msprof_analyze_llm_train_pipe_2025"
MISC = "msprof_analyze_misc"
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="no folder of real profiles beside the checkout")

Analyze = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def analyze(capsys: pytest.CaptureFixture[str]) -> Analyze:
    def call(folder: str, *words: str) -> tuple[int, dict[str, Any]]:
        code = main(["analyze", f"profile={REAL / folder}", "format=json", *words])
        return code, json.loads(capsys.readouterr().out)

    return call


def codes(data: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in data["problems"]]


@pytest.mark.parametrize("folder", [f"{CNN}/level0", MISC])
def test_level0_is_refused_and_says_how_to_capture(analyze: Analyze, folder: str) -> None:
    code, data = analyze(folder)
    assert (code, data["status"], codes(data)) == (2, "refused", ["cannot-classify"])
    assert "PipeUtilization" in data["problems"][0]["fix"] and "level0" in data["problems"][0]["message"]


@pytest.mark.parametrize("folder", [f"{CNN}/level1", f"{CNN}/level2"])
def test_training_of_a_small_network_has_a_roofline_and_no_candidates(analyze: Analyze, folder: str) -> None:
    code, data = analyze(folder)
    assert code == 0 and data["profile"]["kind"] == "pipe_utilization" and data["profile"]["kernels"] == 191
    assert [rank["analysed"] for rank in data["ranks"]] == [False, True]  # the second computes longer
    (phase,) = data["phases"]
    assert phase["phase"] == "training" and not phase["candidates"] and data["forecast"] is None
    assert phase["steps"] == {"found_by": "step_id", "used": 1, "dropped": 0, "different": 0}
    assert codes(data) == ["one-step"]
    assert phase["classes"]["communication"] > 0.9  # first collectives wait for the other card


def test_the_figures_of_the_large_matmuls(analyze: Analyze) -> None:
    """FP32 weights of 9216 x 4096: the load pipe is saturated far from the HBM peak, and it is memory-bound."""
    (phase,) = analyze(f"{CNN}/level1", "analysis.top=100", "analysis.rank=0")[1]["phases"]
    (large,) = [h for h in phase["memory_bound"] if h["shapes"].startswith("32,9216;4096,9216")]
    assert (large["reason"], large["agrees"], large["calls"]) == ("far_from_peak", True, 1)
    weight = 4 * 9216 * 4096
    assert large["bytes"] - weight == 4 * (32 * 9216 + 32 * 4096 + 4096)
    assert 400 < large["gb_s"] < 480 and large["compute"] == "fp32"


def test_vector_kernels_are_not_told_to_have_a_busy_cube(analyze: Analyze) -> None:
    """Their columns of the Cube are 0, not N/A."""
    (phase,) = analyze(f"{CNN}/level1", "analysis.top=100")[1]["phases"]
    moves = [h for h in phase["hotspots"] if h["op_type"] in ("TensorMove", "MemSet", "TransData")]
    assert moves and not [h for h in moves if h["reason"] == "balanced"]


def test_shapes_edited_by_hand_are_named_with_their_lines(analyze: Analyze) -> None:
    code, data = analyze(LLM)
    assert code == 0 and data["profile"]["kind"] == "pipe_utilization" and data["profile"]["kernels"] == 29
    found = [p for p in data["problems"] if p["code"] == "inconsistent-shapes"]
    assert [(p["line"], p["severity"]) for p in found] == [(2, "warning"), (3, "warning"), (10, "warning")]
    assert [p["message"].rpartition("(lines ")[2] for p in found] == ["2, 4, 6, 8)", "3, 5, 7, 9)", "10, 11, 12, 13)"]
    assert all(p["file"].endswith(f"{LLM}/kernel_details.csv") for p in found)
    (phase,) = data["phases"]
    assert phase["phase"] == "training" and not [h for h in phase["memory_bound"] if "MatMul" in h["op_type"]]


def test_all_folders_at_once(analyze: Analyze) -> None:
    code, data = analyze("")
    assert code == 0 and len(data["ranks"]) == 8 and "cannot-classify" in codes(data)
    assert data["profile"]["source"].split("/")[-4:-1] == ["level2", "rank1_ascend_pt", "ASCEND_PROFILER_OUTPUT"]
    again = analyze("", "analysis.rank=0")[1]  # three runs have a rank 0; the one without shapes is no choice
    assert again["profile"]["rank"] == 0 and again["profile"]["kind"] == "pipe_utilization"
