"""A forecast with SuperKernel scopes: figures, each lever alone, signals, reports in both languages."""

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from pipeline.assess import assess
from pipeline.fusable import UNFUSABLE
from pipeline.recipe import parse_recipe
from pipeline.record import Assessment, Rung, TrialRecord
from pipeline.report import report_files
from pipeline.report.markdown import superkernel_markdown
from pipeline.resolve import Resolution, resolve
from pipeline.scope_choice import PROS_AND_CONS
from pipeline.scope_spans import fused_scopes
from pipeline.simulator.forecast import Baseline, Forecast
from pipeline.simulator.machine import load_machine
from pipeline.windows import copies_of
from tests.pipeline.toy import LAYERS, model_and_step

MODEL, STEP = model_and_step()
MACHINE = load_machine("atlas_a3")
BASELINE = Baseline(STEP, MACHINE, draws=32)
TARGETS = {
    "gate_up": {"weight": "layers.{i}.mlp.gate_up", "dependency": "layers.{i}.self_attn.o_proj"},
    "down": {"weight": "layers.{i}.mlp.down", "dependency": "layers.{i}.mlp.gate_up:input"},
}


def trial(strategy: str | None = "auto", prefetch: bool = False) -> tuple[Resolution, Assessment, Forecast]:
    data = {
        "name": "t/both",
        "model": "toy",
        "prefetch": {"enabled": prefetch, "targets": TARGETS},
        "superkernel": {"enabled": strategy is not None, "strategy": strategy or "moe"},
    }
    recipe, problems = parse_recipe(data)
    assert problems == []
    found = resolve(recipe, MODEL, STEP, MACHINE)
    forecast = BASELINE.forecast(copies_of(found.plan, STEP), fused_scopes(found.plan, STEP))
    assessment = assess(
        STEP,
        found.plan,
        found.matches,
        MACHINE,
        forecast,
        baseline=BASELINE,
        placements=found.placements,
        scopes=found.scopes,
    )
    return found, assessment, forecast


def record(strategy: str | None = "auto", prefetch: bool = False, **changes: Any) -> tuple[TrialRecord, Forecast]:
    found, assessment, forecast = trial(strategy, prefetch)
    config = {
        "deployment": {"name": "one_die"},
        "hardware": {"name": "atlas_a3", "generation": "a3"},
        "recipe": {"superkernel": {"allow": ["npugraph_ex"]}},
    }
    made = TrialRecord(
        "abc",
        "out",
        "ok",
        config,
        found.plan,
        matches=found.matches,
        problems=found.problems,
        verification={"numerics": Rung("passed", "equal", "一致")},
        assessment=assessment,
        rerun="npu-recipes run recipe=t/both",
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made, forecast


def test_superkernel_alone_has_figures_of_its_own() -> None:
    _, found, forecast = trial()
    assert found.superkernel is not None
    assert found.superkernel.strategy == "chains" and found.superkernel.why is not None
    assert found.superkernel.prefetch_alone is None
    assert found.superkernel.superkernel_alone == forecast.gain
    assert forecast.gain.value > 0 and found.verdict.outcome == "improved"
    metrics = found.metrics
    assert metrics["superkernel.scopes"].value == 3 * LAYERS
    assert metrics["superkernel.launches_saved"].value == (4 + 4 + 2) * LAYERS
    assert metrics["delta.scoped_kernels"].value > 0
    assert "delta.prefetch_alone" not in metrics
    answers = {item.id: item.answer for item in found.checklist}
    assert answers["target_faster"] == "yes"  # the kernels inside the scopes are the targets
    assert found.targets == []


def test_both_levers_give_the_gain_of_each_alone_equal_to_the_trials_with_one() -> None:
    _, both, _ = trial(prefetch=True)
    _, superkernel, _ = trial()
    _, prefetch, _ = trial(strategy=None, prefetch=True)
    assert both.superkernel is not None and prefetch.superkernel is None
    assert both.metrics["delta.superkernel_alone"] == superkernel.metrics["delta.step"]
    assert both.metrics["delta.prefetch_alone"] == prefetch.metrics["delta.step"]
    assert both.superkernel.prefetch_alone == prefetch.metrics["delta.step"]
    assert [t.name for t in both.targets] == ["gate_up", "down"]


def test_what_a_target_gains_alone_is_without_scopes_and_what_is_lost_without_it_is_with_them() -> None:
    found, both, forecast = trial(prefetch=True)
    copies = copies_of(found.plan, STEP)
    names = [p.target for p in found.plan.prefetch]
    scopes = fused_scopes(found.plan, STEP)
    for target in both.targets:
        only = [c for c, name in zip(copies, names, strict=True) if name == target.name]
        rest = [c for c, name in zip(copies, names, strict=True) if name != target.name]
        assert target.gain_alone is not None and target.gain_without is not None
        assert target.gain_alone.value == pytest.approx(BASELINE.evaluate_many([only])[0].value)
        lost = forecast.gain.value - BASELINE.evaluate_many([rest], scopes=scopes)[0].value
        assert target.gain_without.value == pytest.approx(lost)


def test_one_scope_alone_and_superkernel_alone_are_one_figure_with_one_band() -> None:
    _, found, _ = trial("decoder_layers", prefetch=True)
    assert found.superkernel is not None and len(found.superkernel.scopes) == 1
    assert found.superkernel.scopes[0].gain_alone == found.superkernel.superkernel_alone


def test_a_scope_that_serialises_streams_is_a_modelled_loss_with_a_next_step() -> None:
    """Each layer runs 5 kernels of 30 us beside 3 of 30 us; one after the other they take longer than launches do."""
    beside = ("moe", "mlp")
    step = replace(
        STEP,
        kernels=tuple(
            replace(k, fixed_us=30.0 if any(f".{name}" in k.module for name in beside) else None) for k in STEP.kernels
        ),
    )
    recipe, problems = parse_recipe(
        {"name": "t", "model": "toy", "superkernel": {"enabled": True, "strategy": "decoder_layers"}}
    )
    assert problems == []
    found = resolve(recipe, MODEL, step, MACHINE)
    baseline = Baseline(step, MACHINE, draws=32)
    forecast = baseline.forecast([], fused_scopes(found.plan, step))
    result = assess(step, found.plan, [], MACHINE, forecast, baseline=baseline, scopes=found.scopes)
    assert result.superkernel is not None and result.superkernel.scopes[0].serialises
    assert "streams-serialised" in {p.code for p in found.problems}
    alone = result.superkernel.scopes[0].gain_alone
    assert alone is not None and alone.high is not None and alone.high < 0
    assert result.verdict.outcome == "worse"
    signals = {s.id: s for s in result.verdict.signals}
    assert "streams run one after the other" in signals["scope_slower"].seen.en
    assert signals["scope_slower"].override == "recipe.superkernel.strategy=auto"
    (saved,) = (row.launch_saving for row in found.scope_matches)
    (whole,) = (row.step_saving for row in found.scope_matches)
    assert saved is not None and whole is not None and saved.value > 0 > whole.value


def test_the_json_of_a_trial_holds_the_scopes() -> None:
    data = json.loads(json.dumps(record(prefetch=True)[0].to_json(), allow_nan=False))
    assert data["superkernel"]["strategy"] == "chains"
    assert len(data["superkernel"]["scopes"]) == 3
    assert data["superkernel"]["scopes"][0]["gain_alone"]["provenance"] == "modelled"
    assert data["metrics"]["delta"]["prefetch_alone"]["unit"] == "%"
    assert record(None, True)[0].to_json()["superkernel"] is None


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("strategy", "prefetch"), [("auto", False), ("auto", True), (None, True), ("moe", False)])
def test_every_combination_of_levers_has_whole_reports(language: str, strategy: str | None, prefetch: bool) -> None:
    made, forecast = record(strategy, prefetch, language=language)
    files = report_files(made, STEP, forecast)
    assert ("superkernel_optimization_report.md" in files) == (strategy is not None)
    for name in ("report.md", "superkernel_optimization_report.md"):
        text = files.get(name, "")
        assert "None" not in text and "nan" not in text
        block: list[str] = []
        for line in [*text.split("\n"), ""]:
            if line.startswith("|"):
                block.append(line)
            elif block:
                assert len({row.replace("\\|", "").count("|") for row in block}) == 1, block
                block = []
    title = files["report.md"].split("\n")[0]
    assert ("SuperKernel" in title) == (strategy is not None)
    assert ("Prefetch" in title) == prefetch
    assert ("## SuperKernel" in files["report.md"]) == (strategy is not None)


def test_the_superkernel_report_follows_the_template_and_marks_what_is_modelled() -> None:
    made, forecast = record(prefetch=True, language="zh")
    text = superkernel_markdown(made, date(2026, 1, 2))
    assert text is not None
    headings = [line for line in text.split("\n") if line.startswith("#")]
    assert headings == [
        "# SuperKernel 优化报告",
        "## 优化配置",
        "## 代码修改",
        "### 配置文件修改",
        "### 模型代码修改",
        "## 性能测试结果",
        "### 基线性能(SuperKernel 与 prefetch 禁用)",
        "### 优化后性能(SuperKernel 与 prefetch 启用)",
        "### 性能提升",
        "## 结论",
        "## 使用说明",
    ]
    cast = superkernel_markdown(record("moe", language="zh")[0], date(2026, 1, 2))
    assert cast is not None and not [why for why in (e.why for e in UNFUSABLE) if why in cast]
    for words in ("模型:toy", "Scope 策略:chains", "优化日期:2026-01-02", "enable_superkernel: True", "模型推算"):
        assert words in text, words
    assert f"{forecast.baseline.value / 1000:.3f}" in text and "bash infer.sh" in text
    assert f"{forecast.gain.value:+.2f}" in text
    english = superkernel_markdown(record(prefetch=True)[0], date(2026, 1, 2))
    assert english is not None and "**modelled**" in english and "prefetch only" in english


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_report_says_what_speaks_for_and_against_each_strategy_that_auto_chose_from(language: str) -> None:
    made, _ = record(language=language)
    text = superkernel_markdown(made, date(2026, 1, 2))
    assert text is not None
    for strategy in ("attention", "moe", "chains", "decoder_layers"):
        (row,) = (line for line in text.split("\n") if line.startswith(f"| {strategy} |"))
        assert PROS_AND_CONS[strategy].get(language) in row
    assert made.to_json()["superkernel"]["candidates"][0].keys() >= {"strategy", "launches_saved", "about"}
    fixed = superkernel_markdown(record("moe", language=language)[0], date(2026, 1, 2))
    assert fixed is not None and "| attention |" not in fixed


def test_throughput_rises_by_more_than_latency_falls() -> None:
    text = superkernel_markdown(record()[0], date(2026, 1, 2))
    assert text is not None
    rows = [line for line in text.split("\n") if "increased by" in line or "reduced by" in line]
    latency, throughput = (float(row.split(":")[1].split("[")[0]) for row in rows)
    assert 0 < latency < throughput


def test_what_the_recipe_allows_is_in_the_report() -> None:
    made, _ = record()
    object.__setattr__(made.plan, "exe_mode", "npugraph_ex")
    text = superkernel_markdown(made, date(2026, 1, 2))
    assert text is not None and "runtime.exe_mode=npugraph_ex" in text


def test_the_timeline_names_the_scope_of_a_kernel_in_the_optimised_step_only() -> None:
    made, forecast = record()
    events = json.loads(report_files(made, STEP, forecast)["timeline.json"])["traceEvents"]
    scoped = [e for e in events if "scope" in e.get("args", {})]
    assert {e["pid"] for e in scoped} == {2}
    assert len(scoped) == sum(len(p.span.kernels) for p in trial()[0].scopes.placed)


def test_no_figures_no_superkernel_report() -> None:
    made, _ = record(assessment=None)
    assert superkernel_markdown(made, date(2026, 1, 2)) is None
