"""The machine model against public measurements, through the traced model."""

import pytest

from benchmarks import evidence


@pytest.fixture(scope="module")
def table() -> list[evidence.Row]:
    return evidence.rows(gains=False)


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
    forecast = {gain.id for gain in evidence.GAINS}
    assert forecast == {f"P{n}" for n in range(1, 9)}
    assert {"P9", "P11"} <= set(ids) and not forecast & set(ids)
    assert ids.count("K") == 12


def test_superkernel_savings_stand_beside_their_band_misses_included() -> None:
    from pipeline.simulator.machine import load_machine

    rows = list(evidence.superkernel_rows(load_machine("atlas_a3")))
    assert [row.id for row in rows] == ["S1", "S3", "S3", "S4", "S4"]
    for row in rows:
        assert row.forecast is not None and row.unit == "us" and row.gain is not None
        nominal, low, high = row.forecast
        assert 0 < low <= nominal <= high
        inside = low <= row.gain <= high
        assert row.verdict.startswith("in the band" if inside else "MISS")
    assert rows[3].verdict.startswith("in the band") and rows[4].verdict.startswith("MISS")
    assert rows[1].forecast and rows[2].forecast and rows[1].forecast[0] < rows[2].forecast[0]  # a larger scope


def test_gains_are_forecast_in_steps_of_the_public_length() -> None:
    chosen = [gain for gain in evidence.GAINS if gain.id in ("P1", "P2")]
    rows = list(evidence.gain_rows(chosen))
    assert [row.id for row in rows] == ["P1", "P1", "P2", "P2"]
    for row in rows:
        assert row.forecast is not None and row.unit == "%"
        nominal, low, high = row.forecast
        assert low <= nominal <= high
        assert "padded" in row.verdict and "to 88 ms" in row.verdict
    at_end, between = (row.forecast[0] for row in rows[2:] if row.forecast)
    assert at_end < between  # 80 MB need longer windows than the model alone has


@pytest.mark.parametrize("spread", [False, True])
def test_padding_makes_the_step_longer_by_as_much(spread: bool) -> None:
    from models.loading import load, load_deployment, load_spec
    from models.trace import trace
    from pipeline.simulator.forecast import Baseline
    from pipeline.simulator.machine import load_machine

    spec, served = load_spec("deepseek_v3", num_hidden_layers=4), load_deployment("deepseek_a2_ep16")
    work, machine = trace(load(spec, served, "ge_graph", "full")), load_machine("atlas_a2")
    padded, places = evidence._padded(work, 1000.0, spread)
    assert [padded.kernels[place].op for place in places] == [kernel.op for kernel in work.kernels]
    longer = Baseline(padded, machine, draws=0).step.time - Baseline(work, machine, draws=0).step.time
    pauses = len(padded.kernels) - len(work.kernels)
    least = 700 if spread else 999.9  # beside another stream, idle time may cost nothing
    assert least <= longer <= 1000 + pauses
