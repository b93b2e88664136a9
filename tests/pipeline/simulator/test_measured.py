"""Kernels whose time a profile shows: the machine model says only which part of it a prefetch can take away."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.workload import Kernel, WeightRead, Workload
from pipeline.simulator.copies import Copy
from pipeline.simulator.simulate import simulate
from tests.pipeline.simulator.cases import random_case, single_reader

MIB = 1 << 20
law = settings(max_examples=100, deadline=None, derandomize=True)


@law
@given(st.randoms(use_true_random=False), st.floats(0.5, 500.0))
def test_alone_on_a_cold_l2_a_kernel_takes_what_was_measured(rng: random.Random, us: float) -> None:
    step, _, p = random_case(rng, 1, True)
    once = single_reader(step)
    timed = [
        replace(k, measured_us=us) if k.fixed_us is None and all(r.weight in once for r in k.weights) else k
        for k in step.kernels
    ]
    result = simulate(replace(step, kernels=tuple(timed)), [], p)
    for kernel, found in zip(timed, result.durations(), strict=True):
        if kernel.measured_us is not None:
            assert found == pytest.approx(us, rel=1e-9, abs=1e-6), kernel


@law
@given(st.randoms(use_true_random=False), st.floats(5.0, 200.0))
def test_a_prefetch_never_saves_more_than_the_traffic_that_the_kernel_had(rng: random.Random, us: float) -> None:
    _, _, p = random_case(rng, 1, True)
    weight = 16 * MIB
    before = Kernel(0, "RmsNorm", "norm", "vector", measured_us=400.0)
    target = Kernel(1, "MatMul", "up", "cube", weights=(WeightRead("up.weight", weight),), inputs=(0,), measured_us=us)
    free = p.with_values(issue=0.0)
    result = simulate(Workload((before, target)), [Copy("up.weight", -1, weight, 0)], free)
    traffic = weight / min(p.hbm_peak * p["hbm_share"], p.cores * p["core_bandwidth"])
    assert result.durations()[1] >= us - min(us, traffic) - 1e-6
    assert result.durations()[1] <= us + 1e-6


def test_a_weight_that_came_faster_than_hbm_can_deliver_costs_its_time_and_no_more() -> None:
    """A profile of an already optimised step: the weight was in L2."""
    _, _, p = random_case(random.Random(1), 1, True)
    read = WeightRead("up.weight", 64 * MIB)
    kernel = Kernel(0, "MatMul", "up", "cube", weights=(read,), measured_us=10.0)
    result = simulate(Workload((kernel,)), [], p)
    assert result.durations()[0] == pytest.approx(10.0)
    assert result.hbm_bytes < 64 * MIB
