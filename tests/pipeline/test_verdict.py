"""Outcomes from the paired band; the two-of-four rule stands beside them and never overrules them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.figures import Figure
from pipeline.record import Answer, ChecklistItem, Rung, Text
from pipeline.verdict import modelled_outcome, modelled_verdict, two_of_four

POINTS = ("target_faster", "critical_path", "window_stable", "no_new_tail", "same_numbers")


def gain(value: float, low: float, high: float) -> Figure:
    return Figure(value, "%", low, high)


def checklist(*answers: Answer) -> list[ChecklistItem]:
    text = Text("", "")
    return [ChecklistItem(i, text, a, text, i != "no_new_tail") for i, a in zip(POINTS, answers, strict=True)]


ALL_YES = checklist("yes", "yes", "yes", "yes", "yes")
ALL_NO = checklist("no", "no", "no", "no", "no")


@pytest.mark.parametrize(
    ("figure", "outcome"),
    [
        (gain(8.1, 1.6, 10.9), "improved"),
        (gain(8.4, -0.1, 11.6), "undecided"),
        (gain(-0.9, -2.3, 0.6), "undecided"),
        (gain(-1.0, -2.0, -0.1), "worse"),
        (gain(0.0, 0.0, 0.0), "undecided"),
        (gain(1.0, 0.0, 2.0), "undecided"),
    ],
)
def test_the_whole_band_decides(figure: Figure, outcome: str) -> None:
    assert modelled_outcome(figure) == outcome
    verdict = modelled_verdict(figure, ALL_YES)
    assert verdict.outcome == outcome
    assert verdict.provenance == "modelled" and "modelled, no NPU was used" in verdict.reason.en
    assert "未使用 NPU" in verdict.reason.zh


@given(st.floats(-20, 20), st.floats(0, 20), st.floats(0, 20))
def test_improved_and_worse_mirror_each_other(value: float, below: float, above: float) -> None:
    mirrored = {"improved": "worse", "worse": "improved", "undecided": "undecided"}
    here = modelled_outcome(gain(value, value - below, value + above))
    there = modelled_outcome(gain(-value, -value - above, -value + below))
    assert there == mirrored[here]


def test_an_empty_plan_meets_no_rule() -> None:
    verdict = modelled_verdict(gain(0.0, 0.0, 0.0), ALL_YES, empty=True)
    assert (verdict.outcome, verdict.success, verdict.met) == ("undecided", None, ())
    assert "the plan is empty" in verdict.reason.en and "计划为空" in verdict.reason.zh


def test_a_rounding_residue_has_no_sign() -> None:
    assert modelled_verdict(gain(-0.001, -0.002, 0.001), ALL_YES).reason.en.count("0.00") == 3
    assert "-0.00" not in modelled_verdict(gain(-0.001, -0.002, 0.001), ALL_YES).reason.en


def test_a_certain_but_tiny_gain_is_called_negligible() -> None:
    verdict = modelled_verdict(gain(0.04, 0.01, 0.08), ALL_YES)
    assert verdict.outcome == "improved" and "negligible" in verdict.reason.en and "可忽略" in verdict.reason.zh
    assert "negligible" not in modelled_verdict(gain(4.0, 1.0, 8.0), ALL_YES).reason.en


def test_the_rule_does_not_overrule_the_band() -> None:
    slower = modelled_verdict(gain(-2.0, -3.0, -1.0), ALL_YES)
    assert slower.outcome == "worse" and slower.success is True
    assert "does not make a slower step a gain" in slower.reason.en
    faster = modelled_verdict(gain(2.0, 1.0, 3.0), ALL_NO)
    assert faster.outcome == "improved" and faster.success is False
    assert "fewer than two" in faster.reason.en


@pytest.mark.parametrize(
    ("answers", "success"),
    [
        (("yes", "no", "no", "no", "yes"), True),
        (("yes", "no", "no", "yes", "no"), False),  # the tail is none of the four
        (("yes", "no", "no", "yes", "unknown"), None),
        (("unknown", "unknown", "no", "no", "no"), None),
        (("no", "unknown", "no", "yes", "no"), False),
    ],
)
def test_two_of_four(answers: tuple[Answer, ...], success: bool | None) -> None:
    assert two_of_four(checklist(*answers))[1] is success


def test_failed_numerics_beat_any_gain() -> None:
    verdict = modelled_verdict(gain(9.0, 8.0, 10.0), ALL_YES, (), Rung("failed", "wrong weight in decode step 1"))
    assert verdict.outcome == "failed" and "wrong weight in decode step 1" in verdict.reason.en
