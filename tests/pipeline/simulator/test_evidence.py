"""The machine model against public measurements, through the traced model."""

import pytest

from benchmarks import evidence


@pytest.fixture(scope="module")
def table() -> list[evidence.Row]:
    return evidence.rows()


def test_weight_bound_kernel_times_are_within_a_quarter(table: list[evidence.Row]) -> None:
    required = {row.setting: row.ratio for row in table if row.required}
    assert set(required) == {
        f"{kernel}, {cores} AIC"
        for kernel in ("MLAProlog", "MatMul (router)", "QuantBatchMatmul 1 (gate_up)")
        for cores in (24, 12)
    }
    for setting, ratio in required.items():
        assert ratio == pytest.approx(1.0, abs=0.25), setting


def test_misses_are_shown_as_misses_and_missing_models_as_such(table: list[evidence.Row]) -> None:
    shown = {row.setting: row.verdict for row in table}
    assert shown["TransposeBatchMatMul, 24 AIC"].startswith("MISS")
    assert shown["MatMul (router), 12 AIC"].startswith("within")
    for row in table:
        if row.id[0] in "PS":
            assert row.verdict == evidence.NO_MODEL and row.forecast is None
    ids = [row.id for row in table]
    assert {"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P11", "S1", "S3", "S4"} <= set(ids)
    assert ids.count("K") == 12
