"""Figures and headings as people read them."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.figures import written
from pipeline.sweep import heading
from pipeline.tables import number


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
