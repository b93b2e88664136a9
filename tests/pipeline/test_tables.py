"""Figures and headings as people read them."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pipeline.figures import written
from pipeline.sweep import heading
from pipeline.tables import AloneTable, TrialsTable, number


@pytest.mark.parametrize(
    ("value", "digits", "sign", "text"),
    [(-0.004, 2, True, "0.00"), (0.004, 2, True, "0.00"), (-0.006, 2, True, "-0.01"), (1234.56, 1, False, "1,234.6")],
)
def test_a_rounding_residue_is_no_change(value: float, digits: int, sign: bool, text: str) -> None:
    assert written(value, digits, sign) == text
    assert number({"value": value, "low": value}, digits, sign) == text


def test_a_band_has_no_minus_zero_either() -> None:
    assert number({"value": -0.001, "low": -0.002, "high": 0.2}, 2, True, True) == "0.00 [0.00, +0.20]"


def test_what_differs_between_the_points_is_counted() -> None:
    same = {"recipe": "r", "model": "m", "deployment": "d", "runtime": "ge_graph"}
    points: list[Any] = [SimpleNamespace(choices={**same, "hardware": h}) for h in ("atlas_a2", "atlas_a3")]
    assert heading(points) == "r on m, d, 2 kinds of hardware, ge_graph"
    assert heading(points[:1]) == "r on m, d, atlas_a2, ge_graph"


def table(width: int, trials: int = 3) -> str:
    found = []
    for n in range(trials):
        step = {"value": 53730.35 + n, "low": 51636.9, "high": 61761.1}
        found.append(
            {
                "varying": {"recipe.superkernel.strategy": ("attention", "moe", "decoder_layers")[n % 3]},
                "superkernel": {"strategy": ("attention", "moe", "decoder_layers")[n % 3]},
                "metrics": {
                    "baseline": {"step": step, "throughput": step, "target_kernels": step},
                    "optimized": {"step": step, "throughput": step, "target_kernels": step},
                    "delta": {"step": {"value": 1.0 + n / 100, "low": -10.94, "high": 12.64}},
                    "superkernel": {"scopes": {"value": 1}, "launches_saved": {"value": 1137}},
                },
                "verification": {"numerics": {"status": "passed"}, "performance": {"status": "could_not_check"}},
                "verdict": {"outcome": "undecided", "provenance": "modelled"},
                "status": "ok",
            }
        )
    out = io.StringIO()
    Console(file=out, width=width).print(TrialsTable(found, "a sweep"))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 150, 170, 200, 240, 300])
@pytest.mark.parametrize("trials", [1, 3, 7])
def test_a_table_cuts_no_figure_and_no_verdict_however_wide_it_is(width: int, trials: int) -> None:
    text = table(width, trials)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert text.count("[-10.94, +12.64]") == text.count("undecided") == text.count("1 scope\n") + trials
    for n in range(trials):
        assert f"+{1 + n / 100:.2f}" in text
    assert text.count("decoder_layers:") == trials // 3


@pytest.mark.parametrize("width", [60, 120, 240])
@pytest.mark.parametrize("trials", [1, 5, 30])
def test_every_gain_of_a_target_alone_is_shown_however_many_trials(width: int, trials: int) -> None:
    found = [
        {
            "label": f"c={n}",
            "targets": [
                {"name": name, "gain_alone": {"value": 10 + n, "low": -10.5, "high": 99.5}} for name in ("router", "w2")
            ],
        }
        for n in range(trials)
    ]
    out = io.StringIO()
    Console(file=out, width=width).print(AloneTable(found))
    text = out.getvalue()
    assert "…" not in text and text.count("[-10.50, +99.50]") == 2 * trials
    assert all(text.count(f"+{10 + n}.00") == 2 for n in range(trials))


def test_a_row_per_trial_where_they_fit() -> None:
    (line,) = (line for line in table(300, 1).splitlines() if "+1.00" in line)
    assert "attention" in line and "undecided" in line
    assert "undecided" not in next(line for line in table(100, 1).splitlines() if "+1.00" in line)
