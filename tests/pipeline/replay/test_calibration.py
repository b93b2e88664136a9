"""What a profile measures of the machine, and when it does not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from pipeline.config_files import CONF
from pipeline.mapping.step import Step
from pipeline.replay.calibration import calibrate, theil_sen
from pipeline.simulator.machine import Machine
from tests.pipeline.mapping.steps import make_step

MIB = 1 << 20
SIZES = (6, 12, 18, 36)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine.from_mapping(YAML(typ="safe").load(Path(CONF / "hardware/atlas_a3.yaml").read_text()))


def step_with(bandwidth: float, fixed: float, gap: float, noise: float = 0.0, seed: int = 0) -> Step:
    """Ten layers of MatMuls that take `fixed` us and their bytes at `bandwidth` bytes/us."""
    rows = [("MatMulV3", 0, size * MIB) for size in SIZES] * 10
    rng = np.random.default_rng(seed)
    us = [(fixed + size / bandwidth) * (1 + noise * rng.standard_normal()) for _, _, size in rows]
    return make_step(rows, us=us, gap=gap)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.floats(0.6e6, 1.55e6), st.floats(0.5, 4.0), st.floats(0.05, 0.9))
def test_bandwidth_fixed_time_and_gap_come_out_as_they_went_in(bandwidth: float, fixed: float, gap: float) -> None:
    machine = Machine.from_mapping(YAML(typ="safe").load(Path(CONF / "hardware/atlas_a3.yaml").read_text()))
    changed, found = calibrate(step_with(bandwidth, fixed, gap), machine)
    values = {c.name: c.figure.value for c in found}
    assert values["hbm_share"] * machine.hbm_peak == pytest.approx(bandwidth, rel=1e-6)
    assert values["fixed time of MatMul kernels"] == pytest.approx(fixed, rel=1e-6)
    assert values["gap"] == pytest.approx(gap, rel=1e-6)
    assert changed.nominal()["gap"] == pytest.approx(gap, rel=1e-6)
    assert changed.unknowns["gap"].source.startswith("measured")


def test_noise_widens_the_band_and_the_truth_stays_in_it(machine: Machine) -> None:
    _, found = calibrate(step_with(1.2e6, 2.0, 0.1, noise=0.05), machine)
    figure = next(c.figure for c in found if c.name == "hbm_share")
    assert figure.low is not None and figure.high is not None
    assert figure.low <= 1.2e6 / machine.hbm_peak * 1.05
    assert figure.high >= 1.2e6 / machine.hbm_peak * 0.95


def test_weights_that_came_from_l2_say_nothing_about_hbm(machine: Machine) -> None:
    changed, found = calibrate(step_with(3e6, 2.0, 0.1), machine)
    share = next(c for c in found if c.name == "hbm_share")
    assert not share.used
    assert "L2" in share.note
    assert changed.nominal()["hbm_share"] == machine.nominal()["hbm_share"]


def test_too_few_kernels_leave_the_machine_as_configured(machine: Machine) -> None:
    changed, found = calibrate(make_step([("MatMulV3", 0, 8 * MIB)] * 3), machine)
    assert found == ()
    assert changed.unknowns == machine.unknowns


def test_what_a_baseline_does_not_show_keeps_its_band(machine: Machine) -> None:
    changed, _ = calibrate(step_with(1.2e6, 2.0, 0.1), machine)
    rest = {n: u for n, u in changed.unknowns.items() if n not in ("gap", "hbm_share")}
    assert rest == {n: u for n, u in machine.unknowns.items() if n not in ("gap", "hbm_share")}
    assert replace(changed, unknowns=machine.unknowns).fixed == machine.fixed


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.floats(1.0, 100.0), min_size=3, max_size=12), st.floats(0.55, 0.95))
def test_the_slope_is_that_of_scipy(values: list[float], confidence: float) -> None:
    from scipy.stats import theilslopes

    y, x = np.round(np.array(values)), np.arange(len(values)) ** 1.3
    assert theil_sen(y, x, confidence) == pytest.approx(tuple(theilslopes(y, x, confidence)))
