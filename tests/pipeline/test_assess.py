"""From a forecast to figures, checklist, failure signals and the next adjustment."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from models.workload import Kernel
from pipeline.assess import assess
from pipeline.effects import effects, hbm_time
from pipeline.record import Rung
from pipeline.resolve import TargetMatch
from tests.pipeline.steps import MB, PLACES, WORKLOAD, Machine, Parameters, forecast, plan


def match(coefficient: str = "0.5", size: int = 5 * MB) -> TargetMatch:
    return TargetMatch(
        "gate_up",
        "layers.{i}.gate_up",
        "layers.{i}.o_proj",
        1,
        0,
        "model.layers.0.gate_up.weight",
        10 * MB,
        size,
        coefficient=Decimal(coefficient),
    )


def judge(cast: Any, row: TargetMatch | None = None, numerics: Rung | None = None) -> Any:
    row = row or match()
    made: Any = Machine()
    return assess(WORKLOAD, plan(row.max_size), [row], made, cast, placements=PLACES, numerics=numerics)


def answers(assessment: Any) -> dict[str, str]:
    return {item.id: item.answer for item in assessment.checklist}


FASTER = forecast((10, 20, 7, 15, 2), (11.4, 3.0, 12.0))  # gate_up 12 -> 7 us


def test_effects_are_those_worked_out_by_hand() -> None:
    parameters: Any = Parameters()
    found = effects(WORKLOAD, plan(), PLACES, FASTER, parameters)
    (effect,) = found.targets
    assert (effect.baseline, effect.optimized) == (12.0, 7.0)
    assert effect.memory_bound == pytest.approx(10 / 12)  # 10 MB at 1 MB/us
    assert effect.window == 20.0
    assert effect.window_ops == ("RmsNorm", "GroupedMatmul")  # both streams, targets left out
    assert (effect.window_baseline, effect.window_optimized) == (35.0, 35.0)
    assert effect.copy_time == 6.5
    assert (effect.covered, effect.useful, effect.pushed_out) == (1.0, 1.0, 0.0)
    assert found.in_flight == 5 * MB
    main, moe = found.streams
    assert (main.busy_baseline, main.end_baseline) == (44.0, 44.0)
    assert (moe.busy_optimized, moe.end_optimized) == (15.0, 25.0)


@pytest.mark.parametrize(
    ("time", "flops", "expected"),
    [
        (12.0, 0.0, 10.0),  # 10 MB at 1 MB/us behind 2 us of fixed time
        (22.0, 0.0, 20.0),  # the same beside another stream: still HBM that it waits for, not 10 of 22 us
        (22.0, 15.0 * MB, 20.0),  # alone it would compute for longer, beside the other stream it waits for HBM
        (32.0, 30.0 * MB, 10.0),  # computes for 30 us
    ],
)
def test_hbm_sets_the_pace_also_where_other_streams_take_part_of_it(time: float, flops: float, expected: float) -> None:
    kernel = Kernel(0, "MatMul", "m", "cube", flops=flops)
    parameters: Any = Parameters()
    assert hbm_time(kernel, time, 10.0 * MB, parameters) == pytest.approx(expected)


def test_a_copy_that_is_half_done_covers_half() -> None:
    parameters: Any = Parameters()
    late = forecast((10, 20, 10, 15, 2), (1.0, 0.5, 2.0), start=25.0, end=35.0)
    assert effects(WORKLOAD, plan(), PLACES, late, parameters).targets[0].covered == pytest.approx(0.5)


@pytest.mark.parametrize(("start", "covered"), [(30.0, 1.0), (30.1, 0.0)])
def test_bytes_that_the_target_itself_brought_did_not_arrive_in_time(start: float, covered: float) -> None:
    parameters: Any = Parameters()
    step = forecast((10, 20, 7, 15, 2), (start, 0.0, 12.0)).optimised_step
    found_there = replace(step.copies[0], start=start, end=start + 0.5, moved=0.0, resident=5.0 * MB)
    late: Any = replace(FASTER, optimised_step=replace(step, copies=(found_there,)))
    assert effects(WORKLOAD, plan(), PLACES, late, parameters).targets[0].covered == covered


def test_metrics_have_unit_band_and_the_signs_of_the_contract() -> None:
    metrics = judge(FASTER).metrics
    assert metrics["delta.target_kernels"].value == pytest.approx(100 * 5 / 12)
    assert metrics["delta.windows"].value == 0.0
    assert metrics["prefetch.per_layer"].value == pytest.approx(5 * MB / 2**20)
    throughput, step = metrics["optimized.throughput"], metrics["optimized.step"]
    assert throughput.value == pytest.approx(4 / step.value * 1e6)
    assert throughput.low == pytest.approx(4 / step.high * 1e6) and throughput.low < throughput.high
    assert metrics["baseline.above_limit"].value == pytest.approx(100 * (44 / 10 - 1))
    for figure in metrics.values():
        assert figure.unit and figure.provenance == "modelled"


def test_a_good_plan_fulfils_all_points_and_may_grow() -> None:
    good = judge(FASTER, numerics=Rung("passed", "bit for bit"))
    assert set(answers(good).values()) == {"yes"}
    assert good.verdict.outcome == "improved" and good.verdict.success is True
    (signal,) = good.verdict.signals
    assert (signal.id, signal.target) == ("grow", "gate_up")
    assert "coefficient 0.5 -> 0.7" in signal.adjustment.en and "0.5 -> 0.7" in signal.adjustment.zh
    assert signal.override == "recipe.prefetch.targets.gate_up.coefficient=0.7"
    assert good.targets[0].next == signal.adjustment


def test_at_full_size_there_is_nothing_to_grow() -> None:
    assert judge(FASTER, match("1.0", 10 * MB)).verdict.signals == ()


def test_numbers_are_unknown_unless_the_rung_ran() -> None:
    assert answers(judge(FASTER))["same_numbers"] == "unknown"
    failed = judge(FASTER, numerics=Rung("failed", "wrong weight"))
    assert answers(failed)["same_numbers"] == "no" and failed.verdict.outcome == "failed"


# --- failure signals ---------------------------------------------------------------------------------------------


def only_signal(cast: Any, row: TargetMatch | None = None) -> Any:
    signals = [s for s in judge(cast, row).verdict.signals if s.target]
    assert len(signals) == 1, signals
    return signals[0]


def test_not_faster_and_window_slower_asks_for_the_next_smaller_size() -> None:
    slower = forecast((10, 21, 12, 16, 2), (-2.0, -3.0, -1.0))  # norm and experts 35 -> 37 us: 5.7 % slower
    judged = judge(slower)
    assert answers(judged)["target_faster"] == "no" and answers(judged)["window_stable"] == "no"
    signal = only_signal(slower)
    assert signal.id == "no_gain_window_slower"
    assert "5.7 % slower" in signal.seen.en and "coefficient 0.5 -> 0.3" in signal.adjustment.en
    assert "coefficient 0.3 -> 0.1" in only_signal(slower, match("0.3", 3 * MB)).adjustment.en
    last = only_signal(slower, match("0.1", 1 * MB))
    assert last.adjustment.en == "give this target up" and last.override == "~recipe.prefetch.targets.gate_up"


def test_an_explicit_size_is_answered_with_a_size() -> None:
    slower = forecast((10, 21, 12, 16, 2), (-2.0, -3.0, -1.0))
    row = TargetMatch("gate_up", "w", "d", 1, 0, "", 10 * MB, 5 * MB, coefficient=None)
    assert only_signal(slower, row).override == "recipe.prefetch.targets.gate_up.max_size=3000000"


def test_a_badly_slower_window_asks_for_another_dependency_or_giving_up() -> None:
    worse = forecast((10, 30, 12, 20, 2), (-20.0, -30.0, -10.0))
    assert only_signal(worse).adjustment.en == "give this target up"  # no model, so no other dependency is known


def test_a_late_copy_and_a_lost_copy_are_told_apart() -> None:
    late = only_signal(forecast((10, 20, 12, 15, 2), (0.0, 0.0, 0.0), start=29.0, end=39.0, useful=0.0))
    assert late.id == "target_not_faster" and "10% of the copy had arrived" in late.seen.en
    lost = only_signal(forecast((10, 20, 12, 15, 2), (0.0, 0.0, 0.0), useful=0.0, pushed_out=4.0 * MB))
    assert "80% of what was copied had left L2" in lost.seen.en


def test_faster_targets_without_a_shorter_step_mean_that_the_wait_moved() -> None:
    moved = judge(forecast((10, 20, 7, 32, 2), (0.0, -1.0, 1.0)))  # experts now end at 42 us like gate_up did
    names = [s.id for s in moved.verdict.signals]
    assert "wait_moved" in names
    assert answers(moved)["critical_path"] == "no"
    (signal,) = [s for s in moved.verdict.signals if s.id == "wait_moved"]
    assert "5.0 us faster in sum" in signal.seen.en and "dependency" in signal.adjustment.en


def test_a_kernel_that_takes_much_longer_is_a_new_tail() -> None:
    tail = judge(forecast((10, 20, 7, 25, 2), (5.0, 1.0, 8.0)))  # experts 15 -> 25 us
    assert answers(tail)["no_new_tail"] == "no"
    (signal,) = [s for s in tail.verdict.signals if s.id == "new_tail"]
    assert "GroupedMatmul of model.layers.0.experts 15.0 -> 25.0 us" in signal.seen.en
    assert "stream moe ends at 35.0 us instead of 25.0" in signal.seen.en


def test_a_nominal_gain_whose_band_contains_zero_is_no_answer() -> None:
    open_ = judge(forecast((10, 20, 7, 15, 2), (8.0, -0.1, 11.0)))
    assert answers(open_)["critical_path"] == "unknown"
    assert open_.verdict.outcome == "undecided"


def test_targets_say_what_why_and_how_large() -> None:
    (target,) = judge(FASTER).targets
    assert target.count == 1 and target.op == "QuantBatchMatmul"
    assert target.basis == "9.54 MiB x 0.5 = 4.77 MiB"
    assert "HBM transfer takes 83 % of the 12.0 us" in target.why.en and "100% of it arrives before" in target.why.en
    assert "HBM 传输占 83 %" in target.why.zh


def test_hotspots_group_layers_and_name_the_target() -> None:
    spots = judge(FASTER).hotspots
    assert [s.op for s in spots] == ["RmsNorm", "GroupedMatmul", "QuantBatchMatmul", "MatMul", "Add"]
    assert spots[2].module == "model.layers.{i}.gate_up" and spots[2].target == "gate_up"
    assert sum(s.share.value for s in spots) == pytest.approx(100)
