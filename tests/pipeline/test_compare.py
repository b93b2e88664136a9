"""The verb `compare`: a faster pair, noise, a slower pair, a new tail, another model, one step; what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.loading import load, load_deployment, load_spec
from models.trace import trace
from pipeline.cli import main
from pipeline.simulator.copies import Copy
from pipeline.simulator.machine import load_machine
from pipeline.simulator.simulate import simulate
from tests.pipeline.analysis.frames import write_csv
from tests.pipeline.comparison.cases import Kernel, decode_step, with_copies
from tests.pipeline.comparison.cases import run as steps_of
from tests.pipeline.written_profile import write_profile

ROOT = Path(__file__).parents[2]
Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Exit code, JSON (or text with `text`), stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> tuple[int, Any, str]:
        as_text = "text" in words
        words = tuple(w for w in words if w != "text")
        code = main(["compare", *words, *([] if as_text else ["format=json"])])
        captured = capsys.readouterr()
        return code, captured.out if as_text else json.loads(captured.out), captured.err

    return call


@pytest.fixture
def off(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "off/kernel_details.csv", steps_of(seed=1))


def on(tmp_path: Path, kernels: list[Kernel]) -> str:
    return str(write_csv(tmp_path / "on/kernel_details.csv", kernels))


def answers(data: Any) -> dict[str, str]:
    return {point["id"]: point["answer"] for point in data["checklist"]}


def codes(result: tuple[int, Any, str]) -> list[str]:
    code, data, _ = result
    assert code == 2 and data["status"] == "refused"
    return [p["code"] for p in data["problems"] if p["severity"] == "error"]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profiles from our simulator: `off` and `again` without copies, `on` with gate_up prefetched beside the AllReduce.

    They prove that what went in comes out, and nothing about an NPU.
    """
    machine = load_machine("atlas_a2").for_mode("ge_graph")
    sizes = {"world_size": 4, "attn_tp_size": 4, "dense_tp_size": 4, "o_proj_tp_size": 4}
    spec = load_spec("qwen3", num_hidden_layers=4, vocab_size=16000)
    loaded = load(spec, load_deployment("qwen3_a2_tp1", **sizes), "ge_graph", "full")
    workload = trace(loaded)
    copies = [
        Copy(read.weight, kernel.index - 3, 8 << 20)  # behind o_proj
        for kernel in workload.kernels
        for read in kernel.weights
        if "gate_up" in read.weight
    ]
    assert len(copies) == 4 and all(workload.kernels[c.after].op == "MatMul" for c in copies)
    folder = tmp_path_factory.mktemp("simulated")
    without, with_them = (simulate(workload, plan, machine.nominal()) for plan in ([], copies))
    assert with_them.time < 0.98 * without.time
    for name, step, seed in (("off", without, 1), ("on", with_them, 2), ("again", without, 3)):
        write_profile(folder / name, loaded, workload, step, machine, steps=8, seed=seed)
    (folder / "gain").write_text(str(100 * (1 - with_them.time / without.time)))
    return folder


def test_a_truly_faster_pair_of_the_simulator(run: Run, simulated: Path) -> None:
    code, data, _ = run(str(simulated / "off"), str(simulated / "on"), "hardware=atlas_a2")
    assert code == 0 and data["verdict"]["outcome"] == "improved" and data["verdict"]["success"] is True
    assert data["verdict"]["provenance"] == "measured"
    assert answers(data) == {
        "target_faster": "yes", "critical_path": "yes", "window_stable": "yes", "no_new_tail": "yes",
        "same_numbers": "unknown",
    }  # fmt: skip
    gain = data["metrics"]["delta"]["step"]
    assert gain["low"] < float((simulated / "gain").read_text()) < gain["high"] and gain["provenance"] == "measured"
    assert [t["from_l2"] for t in data["targets"] if t["delta"]["low"] > 2] == [True]
    assert data["kernels"]["paired"] == data["baseline"]["kernels"] and data["baseline"]["steps"]["used"] == 7
    assert data["problems"] == []


def test_a_pair_that_differs_by_noise_only(run: Run, simulated: Path) -> None:
    code, data, _ = run(str(simulated / "off"), str(simulated / "again"))
    gain = data["metrics"]["delta"]["step"]
    assert code == 0 and data["verdict"]["outcome"] == "no_significant_difference"
    assert gain["low"] < 0 < gain["high"]
    assert answers(data)["target_faster"] == answers(data)["critical_path"] == "no"
    assert answers(data)["window_stable"] == answers(data)["no_new_tail"] == "yes"


def test_a_slower_pair(run: Run, off: Path, tmp_path: Path) -> None:
    slower = on(tmp_path, steps_of(factors={"post_norm": 1.5, "gate_up": 1.06}, seed=2))
    _, data, _ = run(str(off), slower)
    assert data["verdict"]["outcome"] == "degraded" and data["metrics"]["delta"]["step"]["high"] < 0
    assert answers(data)["target_faster"] == answers(data)["window_stable"] == "no"
    assert [s["id"] for s in data["verdict"]["signals"]] == ["no_gain_window_slower"]


def test_a_new_tail(run: Run, off: Path, tmp_path: Path) -> None:
    def late(kernels: list[Kernel]) -> list[Kernel]:
        length = sum(k["duration_us"] for k in kernels)
        return [{**kernels[0], "op_type": "TensorMove", "duration_us": length + 120, "stream": "8"}, *kernels]

    _, data, _ = run(str(off), on(tmp_path, steps_of(factors={"gate_up": 0.8}, edit=late, seed=2)))
    assert answers(data)["no_new_tail"] == "no" and answers(data)["target_faster"] == "yes"
    assert [s["stream"] for s in data["streams"] if s["late"]] == ["8"]
    assert "new_tail" in [s["id"] for s in data["verdict"]["signals"]]


def test_another_model_is_refused(run: Run, off: Path, simulated: Path) -> None:
    result = run(str(off), str(simulated / "on"))
    assert codes(result) == ["other-model"]
    assert "read the same weights" in result[1]["problems"][0]["message"]


def test_another_batch_is_refused(run: Run, off: Path, tmp_path: Path) -> None:
    assert codes(run(str(off), on(tmp_path, steps_of(decode_step(rows=16), seed=2)))) == ["other-batch"]


def test_one_step_answers_nothing_however_large_the_difference(run: Run, off: Path, tmp_path: Path) -> None:
    _, data, _ = run(str(off), on(tmp_path, steps_of(factors={"gate_up": 0.5}, steps=1, seed=2)))
    assert data["verdict"]["outcome"] == "undecided" and set(answers(data).values()) == {"unknown"}
    gain = data["metrics"]["delta"]["step"]
    assert gain["value"] > 10 and gain["low"] is None and gain["high"] is None
    assert data["optimized"]["steps"]["used"] == 1 and "too-few-steps" in [p["code"] for p in data["problems"]]


def test_the_same_file_twice_is_refused(run: Run, off: Path) -> None:
    assert codes(run(str(off), str(off.parent))) == ["same-profile"]


def test_the_same_rank_is_compared_and_another_one_is_told(run: Run, tmp_path: Path) -> None:
    def write(where: str, rank: int, factor: float, seed: int) -> None:
        factors = {k["name"]: factor for k in decode_step()}
        kernels = steps_of(factors=factors, seed=seed)
        write_csv(tmp_path / where / f"rank{rank}_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv", kernels)

    for where, slow in (("off", 1), ("on", 0)):
        for rank in (0, 1):
            write(where, rank, 1.3 if rank == slow else 1.0, 10 * slow + rank)
    write("three", 3, 1.0, 5)
    _, data, _ = run("off", "on")
    assert data["baseline"]["rank"] == data["optimized"]["rank"] == 1
    _, chosen, _ = run("off", "on", "analysis.rank=0")
    assert chosen["baseline"]["rank"] == chosen["optimized"]["rank"] == 0
    _, other, _ = run("off", "three")
    assert "different-ranks" in [p["code"] for p in other["problems"]]


def test_of_several_captures_of_a_rank_one_of_the_same_kind_is_taken(run: Run, tmp_path: Path) -> None:
    columns = {"Name": "name", "Type": "op_type", "Accelerator Core": "core", "Start Time(us)": "start_us",
               "Duration(us)": "duration_us", "Wait Time(us)": None, "Block Dim": None, "Step Id": "step"}  # fmt: skip
    inside = "rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv"
    write_csv(tmp_path / "off" / inside, steps_of(seed=1))
    write_csv(tmp_path / "on/a_level0" / inside, steps_of(seed=2), columns)
    write_csv(tmp_path / "on/b_level1" / inside, steps_of(seed=3))
    code, data, _ = run("off", "on")
    assert code == 0 and "b_level1" in data["optimized"]["source"]


def test_an_output_directory_is_refused_with_what_is_needed_instead(run: Run, off: Path, tmp_path: Path) -> None:
    ours = tmp_path / "outputs/2026-01-31/12-00-00-1a2b3c"
    ours.mkdir(parents=True)
    (ours / "plan.json").write_text("{}")
    result = run(str(off), str(ours))
    assert codes(result) == ["output-directory"]
    assert "run_on_npu.py" in result[1]["problems"][0]["fix"] and "modelled" in result[1]["problems"][0]["message"]


def test_both_paths_are_told_at_once(run: Run) -> None:
    assert codes(run("nowhere", "not_here_either")) == ["profile-not-found", "profile-not-found"]


@pytest.mark.parametrize("paths", [[], ["a"], ["a", "b", "c"]])
def test_exactly_two_paths(run: Run, paths: list[str]) -> None:
    result = run(*paths)
    assert codes(result) == ["bad-arguments"] and "two profiles" in result[1]["problems"][0]["message"]


def test_keys_without_meaning_are_refused(run: Run, off: Path) -> None:
    found = codes(
        run(str(off), "b", "profile=x", "model=qwen3", "analysis.coefficient=0.5", "hardware=atlas_a2,atlas_a3")
    )
    assert found == ["no-overrides", "no-overrides", "no-overrides", "sweep-without-m"]


def test_prefill_can_be_compared_and_a_missing_phase_is_refused(run: Run, tmp_path: Path) -> None:
    for name, seed in (("off", 1), ("on", 2)):
        write_csv(tmp_path / f"{name}.csv", steps_of(decode_step(rows=2048), seed=seed))
    assert codes(run("off.csv", "on.csv")) == ["no-such-phase", "no-such-phase"]
    code, data, _ = run("off.csv", "on.csv", "analysis.phase=prefill")
    assert code == 0 and data["phase"] == "prefill"


def test_level0_is_refused(run: Run, off: Path, tmp_path: Path) -> None:
    columns = {"Name": "name", "Type": "op_type", "Accelerator Core": "core", "Start Time(us)": "start_us",
               "Duration(us)": "duration_us", "Wait Time(us)": None, "Block Dim": None, "Step Id": "step"}  # fmt: skip
    bare = write_csv(tmp_path / "level0.csv", steps_of(seed=2), columns)
    assert codes(run(str(off), str(bare))) == ["cannot-classify"]


def test_targets_can_be_named(run: Run, off: Path, tmp_path: Path) -> None:
    faster = on(tmp_path, steps_of(factors={"o_proj": 0.7}, seed=2))
    label = next(t["label"] for t in run(str(off), faster)[1]["targets"] if t["name"] == "o_proj")
    _, data, _ = run(str(off), faster, f"compare.targets=[{label}]")
    assert [t["name"] for t in data["targets"]] == ["o_proj"] and answers(data)["target_faster"] == "yes"
    result = run(str(off), faster, "compare.targets=[MatMulV3 99/7]")
    assert codes(result) == ["no-such-target"] and label in result[1]["problems"][0]["fix"]
    assert codes(run(str(off), faster, "compare.targets=7")) == ["bad-value"]


def test_text_says_measured_and_that_drift_is_not_excluded(run: Run, off: Path, tmp_path: Path) -> None:
    code, out, err = run(str(off), on(tmp_path, steps_of(edit=with_copies, factors={"gate_up": 0.8}, seed=2)), "text")
    assert code == 0 and len(out.splitlines()) < 80
    for words in ("improved (measured)", "drift between them is not excluded", "Checklist", "Top movers", "copies"):
        assert words in out, words
    assert "compared 6 and 6 steps of 31 and 35 kernels" in err and not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_report(run: Run, off: Path, tmp_path: Path, language: str) -> None:
    faster = on(tmp_path, steps_of(edit=with_copies, factors={"gate_up": 0.8}, seed=2))
    run(str(off), faster, f"output={language}", f"report.language={language}")
    report = (tmp_path / language / "report.md").read_text(encoding="utf-8")
    for words in {"en": ("**Improved**", "not interleaved"), "zh": ("**变快**", "没有交错执行")}[language]:
        assert words in report
    lines = report.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("|") and lines[number - 1].startswith("|"):
            assert line.count("|") == lines[number - 1].count("|"), line
    if language == "zh":
        prose = [line for line in lines if not line.startswith(("|", "!")) and len(line) > 20]
        assert prose and all(re.search(r"[一-鿿]", line) for line in prose)
    data = json.loads((tmp_path / language / "comparison.json").read_text(encoding="utf-8"))
    plot = (tmp_path / language / "plots/comparison.svg").read_text(encoding="utf-8")
    assert plot.count("<circle") == 5 + len(data["targets"]) and "GatherV2" not in plot


def test_the_page_explains_every_problem() -> None:
    sources = [ROOT / "pipeline/compare.py", ROOT / "pipeline/comparison/checks.py"]
    found = {
        code
        for path in sources
        for code in re.findall(r"(?:Problem\(\s*\"\w+\",\s*|_warn\(|_error\()\"([a-z0-9-]+)\"", path.read_text("utf-8"))
    } - {"bad-value"}
    page = (ROOT / "docs/compare.md").read_text(encoding="utf-8").split("## Problems")[1]
    explained = set(re.findall(r"`([a-z0-9-]+)`", "\n".join(re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE))))
    assert len(found) > 8 and explained == found
