"""The verb `analyze`: what is refused, what is printed, what is written."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.analysis.remarks import REMARKS
from pipeline.cli import main
from tests.pipeline.analysis.frames import HEADER, collective, in_order, matmul, steps, vector, write_csv

ROOT = Path(__file__).parents[2]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["analyze", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def decode_step(layers: int = 6) -> list[dict[str, Any]]:
    layer = [
        vector("AddRmsNorm", 8 * 4096, 3.0),
        matmul(8, 4096, 2048, 13.0, name="o_proj"),
        collective(20.0),
        vector("AddRmsNorm", 8 * 4096, 5.0),
        matmul(8, 4096, 12288, 70.0, "INT8", name="gate_up"),
        vector("SwiGlu", 8 * 6144, 3.0),
        matmul(8, 6144, 4096, 36.0, name="down"),
    ]
    head = [vector("RmsNorm", 8 * 4096, 2.0), matmul(8, 4096, 32000, 190.0, name="head")]
    return in_order([vector("GatherV2", 8 * 4096, 2.0), *(k for _ in range(layers) for k in layer), *head])


@pytest.fixture
def decode(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "run" / "kernel_details.csv", steps(decode_step(), 4))


def problems(result: tuple[int, str, str]) -> list[str]:
    code, out, _ = result
    data = json.loads(out)
    assert code == 2 and data["status"] == "refused"
    return [p["code"] for p in data["problems"]]


def test_candidates_of_a_decode_profile(run: Run, decode: Path) -> None:
    code, out, _ = run(f"profile={decode.parent}", "hardware=atlas_a3", "format=json")
    data = json.loads(out)
    assert code == 0 and data["status"] == "ok" and data["profile"]["kind"] == "pipe_utilization"
    (phase,) = data["phases"]
    assert phase["phase"] == "decode" and phase["steps"] == {
        "found_by": "step_id", "used": 3, "dropped": 1, "different": 0,
    }  # fmt: skip
    assert {"stream": "2", "layers": 6, "kernels": 7} in phase["layers"]
    gate = next(c for c in phase["candidates"] if "QuantBatchMatmul" in c["target"]["op_type"])
    assert gate["target"]["name"] == "gate_up" and gate["dependency"]["name"] == "o_proj"
    assert gate["weight_bytes"] == 4096 * 12288 and gate["calls"] == 6 and len(gate["pairs"]) == 6
    assert 0 < gate["max_size"] <= gate["weight_bytes"] // 2
    assert gate["fits"]["provenance"] == "modelled" and phase["step"]["provenance"] == "measured"
    assert data["output_dir"] is None and not (decode.parent.parent / "outputs").exists()


def test_text_is_short_and_says_what_is_measured_and_what_modelled(run: Run, decode: Path) -> None:
    code, out, err = run(f"profile={decode}")
    assert code == 0 and len(out.splitlines()) < 70
    for words in ("decode, 3 steps", "Memory-bound operators", "Prefetch candidates", "(measured)", "modelled"):
        assert words in out
    assert "atlas_a2 (assumed" in out and "read and analysed 180 kernels" in err


def test_the_report_is_written_only_where_output_says(run: Run, decode: Path) -> None:
    assert run(f"profile={decode}", "hardware=atlas_a3", "output=found here")[0] == 0
    folder = decode.parents[1] / "found here"
    report = (folder / "report.md").read_text(encoding="utf-8")
    for words in ("## Decode", "### Prefetch candidates", "rule 3a", "### SuperKernel", "QuantBatchMatmulV3 4/7"):
        assert words in report, words
    assert json.loads((folder / "analysis.json").read_text(encoding="utf-8"))["hardware"] == "atlas_a3"
    plot = (folder / "plots/roofline_decode.svg").read_text(encoding="utf-8")
    assert plot.count("<circle") >= 4 and "TFLOPS" in plot


def test_the_report_in_chinese_has_no_english_sentences(run: Run, decode: Path) -> None:
    assert run(f"profile={decode}", "output=zh", "report.language=zh")[0] == 0
    report = (decode.parents[1] / "zh/report.md").read_text(encoding="utf-8")
    assert "### 预取候选" in report
    prose = [line for line in report.splitlines() if not line.startswith("|") and len(line) > 20]
    assert prose and all(re.search(r"[一-鿿]", line) or line.startswith("!") for line in prose)


def test_remarks_of_the_chinese_report_are_explained_in_chinese(run: Run, tmp_path: Path) -> None:
    wrong = matmul(8, 4097, 4096, 30.0, input_shapes="8,4097;4096,4096")
    file = write_csv(tmp_path / "kernel_details.csv", in_order([*decode_step(), wrong]))
    assert run(f"profile={file}", "output=zh", "report.language=zh")[0] == 0
    remarks = (tmp_path / "zh/report.md").read_text(encoding="utf-8").split("## 说明")[1].split("##")[0]
    assert "shape 相互矛盾" in remarks and "只有一步可用" in remarks
    assert all(re.match("- [^`]*[一-鿿]", line) for line in remarks.split("\n") if line)


def test_every_warning_has_a_meaning_in_chinese() -> None:
    """Those that stand beside a result; what refuses never comes into a report."""
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("analyze.md", "profiles.md")]
    told = set(re.findall(r"^\| `([a-z-]+)` \| warning", pages[0].split("## Problems")[1], re.MULTILINE))
    rows = [
        row for row in pages[1].split("## Messages")[1].splitlines() if row.startswith("| `") and "refused" not in row
    ]
    told |= {code for row in rows for code in re.findall("`([a-z]+(?:-[a-z]+)+)`", row.split("|")[1])}
    assert len(told) > 15 and told <= set(REMARKS)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_text_loses_nothing_however_narrow_it_is(
    run: Run, decode: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that does not fit becomes one record per row."""
    monkeypatch.setenv("COLUMNS", str(width))
    text = run(f"profile={decode}", "hardware=atlas_a3")[1].split("replay:")[0]
    assert max(map(len, text.splitlines())) <= width
    plain = "".join(re.sub("[^A-Za-z0-9,;/.]", "", text).split())
    for words in ("QuantBatchMatmulV3", "4096,12288", "farfrom", "communication"):
        assert words in plain, words
    assert all(line.rstrip()[-1] in "│┃" for line in text.splitlines() if line[:1] in ("│", "┃"))
    assert "…" not in text


def test_tables_of_both_reports_have_as_many_cells_as_headings(run: Run, decode: Path) -> None:
    for language in ("en", "zh"):
        run(f"profile={decode}", f"output={language}", f"report.language={language}")
        lines = (decode.parents[1] / language / "report.md").read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if line.startswith("|") and lines[number - 1].startswith("|"):
                assert line.count("|") == lines[number - 1].count("|"), line


def test_nothing_to_prefetch_is_an_answer(run: Run, tmp_path: Path) -> None:
    busy = [matmul(256, 8192, 8192, 160.0, mac_ratio=0.9, mte2_ratio=0.5), vector("AddRmsNorm", 8 * 8192, 3.0)]
    file = write_csv(tmp_path / "kernel_details.csv", steps(in_order(busy * 3), 3))
    code, out, _ = run(f"profile={file}")
    assert code == 0 and "no kernel is memory-bound" in out and "no candidate" in out


def test_no_safe_window_is_an_answer(run: Run, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "kernel_details.csv", steps(in_order([matmul(8, 8192, 8192, 92.0)] * 2), 3))
    code, out, _ = run(f"profile={file}")
    assert code == 0 and "no candidate: no memory-bound target has a safe window" in out
    assert "take the bandwidth" in out


def test_without_a_profile(run: Run) -> None:
    assert problems(run("format=json")) == ["no-profile"]


def test_a_path_that_does_not_exist(run: Run) -> None:
    code, _, err = run("profile=nowhere")
    assert code == 2 and "nowhere" in err and "does not exist" in err


def test_level0_says_how_to_capture_again(run: Run, tmp_path: Path) -> None:
    names = (
        "Step Id",
        "Name",
        "Type",
        "Accelerator Core",
        "Start Time(us)",
        "Duration(us)",
        "Wait Time(us)",
        "Block Dim",
    )
    file = write_csv(tmp_path / "kernel_details.csv", decode_step(), {n: HEADER[n] for n in names})
    code, out, _ = run(f"profile={file}", "format=json")
    data = json.loads(out)
    assert code == 2 and [p["code"] for p in data["problems"]] == ["cannot-classify"]
    assert "aic_metrics" in data["problems"][0]["fix"]


def test_everything_wrong_is_told_at_once(run: Run) -> None:
    words = ["recipe=x", "analysis.coefficient=2", "analysis.phase=decod", "analysis.top=0", "analysis.rnk=1"]
    found = problems(run("hardware=atlas_a9", "profile=x", "format=json", "trial.fresh=true", *words))
    assert sorted(found) == sorted(
        ["unknown-key", "no-overrides", "no-overrides", "unknown-hardware", "bad-value", "bad-value", "bad-value"]
    )


@pytest.mark.parametrize(
    ("word", "code"), [("analysis.rank=7", "no-such-rank"), ("analysis.phase=prefill", "no-such-phase")]
)
def test_what_the_profile_does_not_have(run: Run, decode: Path, word: str, code: str) -> None:
    assert problems(run(f"profile={decode}", word, "format=json")) == [code]


def test_the_machine_s_unknowns_can_be_set(run: Run, decode: Path) -> None:
    def fits(*words: str) -> float:
        data = json.loads(run(f"profile={decode}", "format=json", *words)[1])
        return next(c for c in data["phases"][0]["candidates"] if c["target"]["name"] == "gate_up")["fits"]["value"]

    assert fits("hardware.unknowns.cmo_bandwidth.nominal=1.2") > 1.2 * fits()


def test_an_output_that_cannot_be_written_refuses_before_anything_is_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert problems(run("profile=nowhere", "output=file", "format=json")) == ["output-not-writable"]


def test_a_report_beside_the_profile_changes_no_later_answer(run: Run, decode: Path) -> None:
    words = (f"profile={decode.parent}", "format=json")
    first = json.loads(run(*words, f"output={decode.parent}")[1])
    again = json.loads(run(*words)[1])
    assert (decode.parent / "report.md").exists() and decode.exists()
    assert first["phases"] == again["phases"] and first["ranks"] == again["ranks"] == []


def test_several_ranks_the_slowest_is_analysed(run: Run, tmp_path: Path) -> None:
    for rank, factor in ((0, 1.0), (1, 1.3), (2, 1.1)):
        slow = [k | {"duration_us": k["duration_us"] * factor} for k in steps(in_order(decode_step()), 3)]
        write_csv(tmp_path / f"all/rank{rank}_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv", slow)
    data = json.loads(run("profile=all", "format=json")[1])
    assert [r["rank"] for r in data["ranks"] if r["analysed"]] == [1] and data["profile"]["rank"] == 1
    chosen = json.loads(run("profile=all", "analysis.rank=2", "format=json")[1])
    assert chosen["profile"]["rank"] == 2
    assert "Ranks, us (measured)" in run("profile=all")[1]


def test_the_pages_explain_every_problem() -> None:
    """analyze.md those of the analysis, replay.md those of a model."""
    sources = [*(ROOT / "pipeline").glob("analyze*.py"), ROOT / "pipeline/analysis/analyse.py"]
    codes = {
        code
        for path in sources
        for code in re.findall(r"(?:Problem\(\s*\"\w+\",\s*|warn\()\"([a-z0-9-]+)\"", path.read_text(encoding="utf-8"))
    } - {"bad-value", "not-a-mapping"}
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    explained = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", pages["analyze.md"] + pages.get("replay.md", "")))
    assert len(codes) > 8 and codes <= explained
    rows = re.findall(r"^\| ([^|]*) \|", pages["analyze.md"].split("## Problems")[1], re.MULTILINE)
    assert set(re.findall(r"`([a-z-]+)`", "\n".join(rows))) <= codes
