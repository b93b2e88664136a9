"""What a trial leaves behind for people: report, plots, timeline, NPU script."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from models.problems import Problem
from models.workload import Workload
from pipeline.assess import assess
from pipeline.record import Rung, TrialRecord
from pipeline.report import report_files, timeline, write_report
from pipeline.report.svg import ticks
from pipeline.resolve import TargetMatch
from tests.pipeline.steps import MB, PLACES, WORKLOAD, Machine, forecast, plan

ROW = TargetMatch(
    "gate_up", "layers.{i}.gate_up", "layers.{i}.o_proj", 1, 0, "", 10 * MB, 5 * MB, coefficient=Decimal("0.5")
)
NUMERICS = Rung("passed", "3 decode steps equal the baseline bit for bit", "3 步 decode 逐位一致")


def cast(**changes: Any) -> Any:
    made = forecast((10, 20, 7, 15, 2), (11.4, 3.0, 12.0), **changes)
    for step in (made.baseline_step, made.optimised_step):
        object.__setattr__(step, "hits", (0.0, 0.0, 5.0 * MB, 0.0, 0.0))
    return made


def record(language: Any = "en", **changes: Any) -> TrialRecord:
    machine: Any = Machine()
    assessment = assess(WORKLOAD, plan(), [ROW], machine, cast(), placements=PLACES, numerics=NUMERICS)
    made = TrialRecord(
        key="abc",
        output_dir="outputs/1",
        status="ok",
        config={"deployment": {"name": "one_die"}, "hardware": {"name": "atlas_a3"}},
        plan=plan(),
        overrides=["recipe.prefetch.coefficient=0.5"],
        problems=[Problem("warning", "l2-in-flight", "much is in flight", "Lower it.", "recipe.prefetch.coefficient")],
        verification={
            "compiles": Rung("passed", "runs"),
            "numerics": NUMERICS,
            "graph": Rung("not_run", "not in this version"),
        },
        calls_planned=1,
        calls_observed=1,
        assessment=assessment,
        diff="--- a/m.py\n+++ b/m.py\n@@ -1 +1,2 @@\n-x\n+y\n+z\n",
        changed_files=["m.py"],
        rerun="npu-recipes run recipe=small/test",
        language=language,
    )
    return replace(made, **changes)


def files(language: str = "en") -> dict[str, str]:
    return report_files(record(language), WORKLOAD, cast())


def test_what_a_reader_may_misread_is_said() -> None:
    english, chinese = files()["report.md"], files("zh")["report.md"]
    assert "checked on a tiny model on CPU" in english and "(measured)" not in english
    assert "在 CPU 上用小模型检查" in chinese and "实测" not in chinese.split("检查清单")[1].split("## 7")[0]
    for text, words in ((english, ("edge of the band", "*Useful bytes*")), (chinese, ("区间边缘", "*有效字节*"))):
        assert all(word in text for word in words)


def test_the_report_of_an_empty_plan_claims_no_rule() -> None:
    empty = replace(plan(), prefetch=())
    machine: Any = Machine()
    made = forecast((10, 20, 9, 15, 2), (0.0, 0.0, 0.0))
    made = replace(made, optimised_step=made.baseline_step)
    found = assess(WORKLOAD, empty, [], machine, made, placements=())
    assert found.verdict.success is None and "the plan is empty" in found.verdict.reason.en
    for language, words in (("en", "since the plan is empty"), ("zh", "计划为空,无法判断")):
        text = report_files(record(language, plan=empty, assessment=found), WORKLOAD, made)["report.md"]
        assert words in text


# --- the report --------------------------------------------------------------------------------------------------


def test_the_report_has_the_seven_points_the_figures_and_says_what_is_modelled() -> None:
    text = files()["report.md"]
    for number, word in enumerate(("Targets", "memory-bound", "windows", "Switch", "Sizes", "verified", "Risks"), 1):
        assert f"\n## {number}. " in text
        assert word in text.split(f"\n## {number}. ")[1].split("\n")[0]
    first = text.split("\n")[2]
    assert first.startswith("**improved** (modelled)") and "+11.40 % [+3.00, +12.00]" in first
    assert "no NPU was used" in text and "Not checked on hardware" in text
    assert "| compiles | passed | runs |" in text and "| graph | not run | not in this version |" in text
    assert "[x] **Are the target kernels faster?** yes (modelled)" in text
    assert "At least two of the four points (all but the long tails): yes" in text
    assert "`enable_prefetch` (off by default)" in text
    assert "1 file(s) changed, 2 lines added, 1 removed: `m.py`" in text
    assert "9.54 MiB x 0.5 = 4.77 MiB" in text
    assert "recipe.prefetch.targets.gate_up.coefficient=0.7" in text
    assert "warning (`recipe.prefetch.coefficient`): much is in flight. Lower it." in text
    assert "npu-recipes run recipe=small/test" in text and "npu-recipes reproduce outputs/1" in text
    assert "run_on_npu.py" in text


def test_the_chinese_report_has_the_same_figures() -> None:
    text = files("zh")["report.md"]
    assert "有提升" in text and "模型推算" in text and "尚未在硬件上验证" in text
    for number in range(1, 8):
        assert f"\n## {number}. " in text
    for figure in ("+11.40 [+3.00, +12.00]", "44.0 [39.6, 48.4]", "系数 0.5 -> 0.7", "3 步 decode 逐位一致"):
        assert figure in text, figure


def test_tables_are_whole() -> None:
    for language in ("en", "zh"):
        block: list[str] = []
        for line in [*files(language)["report.md"].split("\n"), ""]:
            if line.startswith("|"):
                block.append(line)
            elif block:
                assert len({row.replace("\\|", "").count("|") for row in block}) == 1, block
                block = []


def test_a_wrap_has_no_patch_and_a_failed_trial_still_has_a_report() -> None:
    assert "no source was changed" in report_files(record(diff="", transform="wrap"))["report.md"]
    broken = record(
        assessment=None, verification={"numerics": Rung("failed", "no call | observed")}, calls_observed=None
    )
    text = report_files(broken)["report.md"]
    assert "**failed**" in text and "no call \\| observed" in text and "there are no figures" in text


def test_the_same_record_gives_the_same_bytes() -> None:
    assert files() == files()


def test_json_has_the_keys_of_the_contract() -> None:
    data = json.loads(json.dumps(record().to_json(), allow_nan=False))
    for key in (
        "output_dir",
        "status",
        "verification",
        "verdict",
        "metrics",
        "targets",
        "calls_planned",
        "calls_observed",
        "scopes_planned",
        "scopes_observed",
    ):
        assert key in data
    assert data["verification"]["numerics"] == {"status": "passed", "detail": NUMERICS.detail}
    assert data["verdict"]["outcome"] == "improved" and data["verdict"]["reason"]
    places = (("baseline", "step"), ("optimized", "step"), ("delta", "step"), ("baseline", "throughput"))
    figures = [data["metrics"][a][b] for a, b in (*places, ("optimized", "throughput"))]
    for figure in [*figures, data["metrics"]["physical_limit"]]:
        assert set(figure) == {"value", "unit", "low", "high", "provenance"}


# --- plots and timeline ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plots/step.svg", "plots/targets.svg", "plots/layer.svg"])
def test_plots_are_svg_with_every_label_inside(name: str) -> None:
    for language in ("en", "zh"):
        root = ElementTree.fromstring(files(language)[name])
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for element in root.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 <= float(element.attrib["x"]) <= width and 0 <= float(element.attrib["y"]) <= height
        for element in root.iter("{http://www.w3.org/2000/svg}rect"):
            assert float(element.get("x", 0)) + float(element.attrib["width"]) <= width + 1


def test_bars_are_to_scale() -> None:
    root = ElementTree.fromstring(files()["plots/targets.svg"])
    bars = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "14.00"]
    before, after = (float(bar.attrib["width"]) for bar in bars)
    assert after / before == pytest.approx(7 / 12, abs=1e-3)


@pytest.mark.parametrize("top", [0.003, 0.7, 1.0, 9.99, 44.0, 12_345.0])
def test_ticks_are_few_and_reach_the_top(top: float) -> None:
    values = ticks(top)
    assert 2 <= len(values) <= 7 and values[0] == 0 and top * 0.7 <= values[-1] <= top * 1.0001


def test_the_timeline_is_a_chrome_trace_of_both_steps() -> None:
    trace = json.loads(files()["timeline.json"])
    events = trace["traceEvents"]
    names = {(e["pid"], e.get("tid"), e["name"]): e["args"] for e in events if e["ph"] == "M"}
    assert names[(1, None, "process_name")]["name"].startswith("baseline")
    assert names[(2, None, "process_name")]["name"].startswith("optimised")
    assert names[(2, 3, "thread_name")]["name"] == "CMO (prefetch copies)" and (1, 3, "thread_name") not in names
    kernels = [e for e in events if e["ph"] == "X" and e["cat"] != "cmo"]
    assert len(kernels) == 2 * len(WORKLOAD.kernels)
    gate_up = next(e for e in kernels if e["pid"] == 2 and e["name"] == "QuantBatchMatmul")
    assert (gate_up["ts"], gate_up["dur"]) == (30.0, 7.0)
    assert gate_up["args"]["module"] == "model.layers.0.gate_up" and gate_up["args"]["hits"] == 5 * MB
    (copied,) = [e for e in events if e["ph"] == "X" and e["cat"] == "cmo"]
    assert (copied["ts"], copied["dur"], copied["args"]["bytes"]) == (11.5, 5.0, 5 * MB)
    start, end = [e for e in events if e["ph"] in "sf"]
    assert (start["ph"], start["ts"], start["tid"], end["ph"], end["ts"], end["tid"]) == ("s", 11.5, 3, "f", 30.0, 1)
    assert start["id"] == end["id"] and trace["otherData"]["provenance"] == "modelled"


def test_slices_of_a_thread_do_not_overlap_and_useless_copies_have_no_arrow() -> None:
    late = timeline(WORKLOAD, plan(), PLACES, cast(start=31.0, end=36.0))
    events = json.loads(late)["traceEvents"]
    assert not [e for e in events if e["ph"] in "sf"]
    threads: dict[Any, list[Any]] = {}
    for e in events:
        if e["ph"] == "X":
            threads.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for slices in threads.values():
        for (_, end), (start, _) in zip(sorted(slices), sorted(slices)[1:], strict=False):
            assert start >= end - 1e-3


# --- with the real simulator -------------------------------------------------------------------------------------


def test_the_real_simulator_fits_and_single_targets_are_tried_alone() -> None:
    from ruamel.yaml import YAML

    from pipeline.simulator.forecast import Baseline
    from pipeline.simulator.machine import Machine as Real
    from pipeline.windows import copies_of

    file = Path(__file__).parents[2] / "conf" / "hardware" / "atlas_a3.yaml"
    machine = Real.from_mapping({"name": "atlas_a3", **YAML(typ="safe").load(file.read_text())})
    workload, wanted = two_targets()
    base = Baseline(workload, machine, draws=16)
    found = base.forecast(copies_of(wanted, workload))
    result = assess(workload, wanted, [], machine, found, baseline=base, alone_draws=8)
    assert result.metrics["delta.step"].value == pytest.approx(found.gain.value)
    assert result.metrics["physical_limit"].value == pytest.approx(found.limit.value)
    first, second = result.targets
    assert first.gain_alone is not None and first.gain_alone.low is not None
    assert first.gain_alone.value + second.gain_alone.value == pytest.approx(found.gain.value, abs=2.0)
    # The whole plan without the one target is the plan with only the other.
    assert first.gain_without.value == pytest.approx(found.gain.value - second.gain_alone.value)
    # Its band is of what each draw loses, not the difference of two bands.
    lost = found.gain_draws[:8] - base.forecast([copies_of(wanted, workload)[1]]).gain_draws[:8]
    low, high = np.quantile(lost, (0.1, 0.9))
    assert first.gain_without.low == pytest.approx(min(low, first.gain_without.value))
    assert first.gain_without.high == pytest.approx(max(high, first.gain_without.value))
    made = report_files(replace(record(), plan=wanted, assessment=result), workload, found)
    assert {"plots/layer.svg", "timeline.json"} <= set(made)


def test_an_empty_plan_has_a_report_too() -> None:
    empty = replace(plan(), prefetch=())
    nothing = cast()
    object.__setattr__(nothing.optimised_step, "copies", ())
    machine: Any = Machine()
    judged = assess(WORKLOAD, empty, [], machine, nothing)
    made = report_files(replace(record(), plan=empty, assessment=judged), WORKLOAD, nothing)
    assert "0 prefetches per decode step" in made["report.md"]
    for name in ("plots/step.svg", "plots/targets.svg", "plots/layer.svg"):
        ElementTree.fromstring(made[name])


def test_files_are_written_below_the_directory(tmp_path: Path) -> None:
    write_report(tmp_path, record(), WORKLOAD, cast())
    names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    plots = {"plots/step.svg", "plots/targets.svg", "plots/layer.svg"}
    assert names == {"report.md", "run_on_npu.py", "timeline.json", *plots}


def two_targets() -> tuple[Workload, Any]:
    from models.workload import Kernel, ModuleCall, WeightRead

    def reads(name: str) -> tuple[WeightRead, ...]:
        return (WeightRead(f"{name}.weight", 16 * 2**20),)

    kernels = (
        Kernel(0, "MatMul", "a", "cube"),
        Kernel(1, "RmsNorm", "n", "vector", inputs=(0,), other_bytes=30e6),
        Kernel(2, "MatMul", "b", "cube", weights=reads("b"), inputs=(1,)),
        Kernel(3, "RmsNorm", "m", "vector", inputs=(2,), other_bytes=30e6),
        Kernel(4, "MatMul", "c", "cube", weights=reads("c"), inputs=(3,)),
    )
    calls = {name: (ModuleCall(name, 2 * k, 2 * k + 1, k - 1 if k else None, k),) for k, name in enumerate("anbmc")}
    entry = plan().prefetch[0]
    size = 8 * 2**20
    entries = (
        replace(entry, target="b", weight="b.weight", dependency="a", theoretical_size=2 * size, max_size=size),
        replace(entry, target="c", weight="c.weight", dependency="b", theoretical_size=2 * size, max_size=size),
    )
    return Workload(kernels, calls, layers=1), replace(plan(), prefetch=entries)
