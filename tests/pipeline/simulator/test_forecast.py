"""Forecasts: paired bands, reused baselines, many plans at once."""

import numpy as np
import pytest

from models.workload import Kernel, Workload
from pipeline.simulator.copies import Copy
from pipeline.simulator.forecast import Baseline, evaluate_many, forecast
from pipeline.simulator.limit import physical_limit, required_bytes
from pipeline.simulator.machine import Machine
from pipeline.simulator.simulate import SimulationError, simulate
from tests.pipeline.simulator.cases import MIB, idle, matmul, workload
from tests.pipeline.simulator.test_machine import read


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine.from_mapping(read("atlas_a3"))


@pytest.fixture(scope="module")
def step() -> Workload:
    kernels: list[Kernel] = []
    for layer in range(4):
        n = 4 * layer
        kernels += [
            matmul(n, f"{layer}.o", 16 * MIB),
            idle(n + 1, 30.0),
            matmul(n + 2, f"{layer}.up", 36 * MIB),
            matmul(n + 3, f"{layer}.down", 18 * MIB),
        ]
    return workload(*kernels)


def plan(size: int, target: str = "up") -> list[Copy]:
    return [Copy(f"{layer}.{target}", 4 * layer, size) for layer in range(4)]


def test_a_forecast_is_nominal_with_a_paired_band(step: Workload, machine: Machine) -> None:
    result = forecast(step, plan(18 * MIB), machine, draws=64, seed=5)
    assert result.baseline.value == simulate(step, [], machine.nominal()).time
    assert result.optimised.value == simulate(step, plan(18 * MIB), machine.nominal()).time
    draws = machine.draws(64, 5)
    before = np.array([simulate(step, [], p).time for p in draws])
    after = np.array([simulate(step, plan(18 * MIB), p).time for p in draws])
    assert result.baseline_draws.tolist() == before.tolist()
    assert result.optimised_draws.tolist() == after.tolist()
    gains = 100 * (before - after) / before
    low, high = np.quantile(gains, [0.1, 0.9])
    assert (result.gain.low, result.gain.high) == pytest.approx((low, max(high, result.gain.value)), abs=1e-12)
    assert result.gain.provenance == "modelled" and result.gain.unit == "%" and result.baseline.unit == "us"
    assert result.limit.value == physical_limit(step, machine) < result.optimised.value


def test_the_band_of_the_gain_is_paired(step: Workload, machine: Machine) -> None:
    """The baseline against itself gains exactly nothing, however wide the band of its time."""
    result = forecast(step, [], machine, draws=32)
    assert result.baseline.low is not None and result.baseline.high is not None
    assert result.baseline.high - result.baseline.low > 1.0
    assert (result.gain.value, result.gain.low, result.gain.high) == (0.0, 0.0, 0.0)


def test_a_baseline_is_reused(step: Workload, machine: Machine) -> None:
    baseline = Baseline(step, machine, draws=32, seed=1)
    for size in (4 * MIB, 30 * MIB):
        fresh = forecast(step, plan(size), machine, draws=32, seed=1)
        again = forecast(step, plan(size), machine, baseline=baseline)
        assert again.gain == fresh.gain and again.optimised == fresh.optimised


def test_many_plans_equal_single_forecasts(step: Workload, machine: Machine) -> None:
    baseline = Baseline(step, machine, draws=64)
    plans = [plan(size * MIB, target) for size in range(0, 36, 3) for target in ("up", "down")] + [[]]
    singles = [baseline.forecast(p) for p in plans]
    many = baseline.evaluate_many(plans)
    assert [gain.value for gain in many] == pytest.approx([single.gain.value for single in singles], abs=1e-9)
    assert all(gain.low is None for gain in many)
    banded = evaluate_many(step, plans, machine, draws=16, baseline=baseline)
    for gain, single in zip(banded, singles, strict=True):
        assert gain.value == pytest.approx(single.gain.value, abs=1e-9)
        low = np.quantile(single.gain_draws[:16], 0.1)
        assert gain.low == pytest.approx(min(low, gain.value), abs=1e-9)
    assert evaluate_many(step, [], machine) == []


def test_more_draws_than_the_baseline_has(step: Workload, machine: Machine) -> None:
    with pytest.raises(ValueError, match="9 draws asked for, the baseline has 8"):
        Baseline(step, machine, draws=8).evaluate_many([[]], draws=9)


def test_the_order_of_plans_does_not_matter(step: Workload, machine: Machine) -> None:
    """Nothing leaks from one plan into the next."""
    baseline = Baseline(step, machine, draws=4)
    plans = [plan(36 * MIB), [], plan(2 * MIB, "down"), plan(18 * MIB)]
    forward = baseline.evaluate_many(plans, 4)
    assert baseline.evaluate_many(plans[::-1], 4)[::-1] == forward


def test_a_warm_start_is_carried_through(step: Workload, machine: Machine) -> None:
    layer = workload(*step.kernels[:4])  # 70 MiB stay in L2, all four layers do not
    cold, warm = Baseline(layer, machine, 4), Baseline(layer, machine, 4, steps=2)
    assert warm.step.time < cold.step.time and (warm.times < cold.times).any()
    assert warm.step.time == simulate(layer, [], machine.nominal(), steps=2).time
    assert Baseline(step, machine, 4, steps=2).step.time == Baseline(step, machine, 4).step.time


def test_an_impossible_workload_is_named_in_forecasts_too(machine: Machine) -> None:
    stuck = workload(idle(0, 1.0, "a", inputs=[1]), idle(1, 1.0, "b", inputs=[0]))
    with pytest.raises(SimulationError, match="Idle of wait0"):
        Baseline(stuck, machine, 4)


def test_the_physical_limit_counts_every_byte_once(machine: Machine) -> None:
    step = workload(
        matmul(0, "a", 16e6, other=1e6),
        matmul(1, "a", 16e6),
        matmul(2, "experts", 8e6, share=(0.1, 0.5, 0.9)),
        idle(3, 500.0),
    )
    assert required_bytes(step) == 16e6 + 1e6 + 4e6
    assert physical_limit(step, machine) == pytest.approx(21e6 / 1.6e6)
