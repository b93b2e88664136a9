"""The five points, the verdict and the signals, from figures."""

from dataclasses import replace

import pytest

from pipeline.comparison.changes import Change, Measured
from pipeline.comparison.judge import checklist, find_signals, verdict
from pipeline.figures import Figure


def change(value: float, half: float | None = 0.5, before: float = 100.0, calls: int = 4) -> Change:
    """A change of `value` % (positive = faster), give or take `half`."""
    after = before * (1 - value / 100)
    low, high = (None, None) if half is None else (value - half, value + half)
    gain = Figure(value, "%", low, high, "measured")
    us = (Figure(v, "us", v, v, "measured") for v in (before, after))
    return Change("x", calls, *us, gain, after - before)


def measured(step: Change, targets: Change | None, windows: Change | None) -> Measured:
    return Measured(step, step, change(0.0), (), targets, 0, windows, (), (), None, (), None)


def answers(found: Measured) -> dict[str, str]:
    return {p.id: p.answer for p in checklist(found)}


def outcome(found: Measured) -> tuple[str, bool | None, list[str]]:
    points = checklist(found)
    result = verdict(found, points, find_signals(found, points))
    assert result.provenance == "measured" and "drift between them is not excluded" in result.reason.en
    return result.outcome, result.success, [s.id for s in result.signals]


def test_faster_targets_step_and_stable_windows_are_an_improvement_with_room() -> None:
    found = measured(change(3.0), change(8.0), change(-0.5))
    assert answers(found) == {
        "target_faster": "yes", "critical_path": "yes", "window_stable": "yes", "no_new_tail": "yes",
        "same_numbers": "unknown",
    }  # fmt: skip
    assert outcome(found) == ("improved", True, ["grow"])


def test_nothing_but_noise_is_no_significant_difference() -> None:
    found = measured(change(0.1), change(0.2), change(-0.1))
    assert answers(found)["target_faster"] == "no" and answers(found)["critical_path"] == "no"
    assert outcome(found) == ("no_significant_difference", None, ["target_not_faster"])


@pytest.mark.parametrize(("gain", "half", "answer"), [(0.6, 0.5, "yes"), (0.4, 0.5, "no"), (0.4, 2.0, "unknown")])
def test_an_interval_too_wide_answers_nothing(gain: float, half: float, answer: str) -> None:
    found = measured(change(gain, half), change(8.0), change(0.0))
    assert answers(found)["critical_path"] == answer


def test_slower_windows_without_faster_targets_ask_for_a_smaller_size_and_the_rule_does_not_hold() -> None:
    found = measured(change(-2.0), change(-1.0), change(-8.0))
    assert outcome(found) == ("degraded", False, ["no_gain_window_slower"])
    [signal] = find_signals(found, checklist(found))
    assert "0.5 -> 0.3 -> 0.1" in signal.adjustment.en


def test_slower_windows_beside_faster_targets_too() -> None:
    assert outcome(measured(change(1.5), change(8.0), change(-6.0))) == ("improved", True, ["window_slower"])


def test_faster_targets_and_the_same_step_mean_that_the_wait_moved() -> None:
    found = measured(change(0.0), change(8.0), change(0.0))
    assert outcome(found) == ("no_significant_difference", True, ["wait_moved"])


def test_the_rule_does_not_make_a_slower_step_a_gain() -> None:
    found = measured(change(-2.0), change(8.0), change(0.0))
    points = checklist(found)
    result = verdict(found, points, [])
    assert result.outcome == "degraded" and result.success is True and "does not make a slower step" in result.reason.en


def test_a_single_window_that_is_much_slower_is_not_hidden_in_the_sum() -> None:
    found = measured(change(0.5), change(8.0), change(-1.0))
    assert answers(found)["window_stable"] == "yes"
    from pipeline.comparison.changes import TargetChange

    us = Figure(10.0, "us", 9.9, 10.1, "measured")
    one = TargetChange("MatMulV3 4/7", "m", "MatMulV3", "", 4, us, us, None, None, None, False, change(-9.0))
    found = replace(found, targets=(one,))
    assert answers(found)["window_stable"] == "no"
    assert "before MatMulV3 4/7 +9.0 %" in next(p for p in checklist(found) if p.id == "window_stable").detail.en


def test_a_new_tail_is_no_and_asks_for_another_dependency() -> None:
    found = replace(measured(change(3.0), change(8.0), change(0.0)), slower=(change(-80.0, before=10.0),))
    assert answers(found)["no_new_tail"] == "no"
    assert "new_tail" in outcome(found)[2]


def test_without_an_interval_everything_is_unknown_and_undecided() -> None:
    found = measured(change(9.0, None), change(20.0, None), change(0.0, None))
    assert set(answers(found).values()) == {"unknown"}
    assert outcome(found) == ("undecided", None, [])


def test_without_targets_the_step_is_still_judged() -> None:
    found = measured(change(3.0), None, None)
    assert answers(found)["target_faster"] == answers(found)["window_stable"] == "unknown"
    assert outcome(found)[0] == "improved"


def test_every_sentence_is_there_in_both_languages() -> None:
    for found in (measured(change(3.0), change(8.0), change(-9.0)), measured(change(0.0, None), None, None)):
        points = checklist(found)
        signals = find_signals(found, points)
        texts = [*(p.detail for p in points), verdict(found, points, signals).reason, *(s.seen for s in signals)]
        for text in texts:
            assert text.en.isascii() and any("一" <= c <= "鿿" for c in text.zh), text
