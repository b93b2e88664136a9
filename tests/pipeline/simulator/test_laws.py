"""What must hold for every workload, plan and machine, and what need not."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.workload import Workload
from pipeline.simulator.copies import Copy
from pipeline.simulator.limit import required_bytes
from pipeline.simulator.parameters import Parameters
from pipeline.simulator.simulate import simulate
from tests.pipeline.simulator.cases import random_case, random_scopes, single_reader

Case = tuple[Workload, list[Copy], Parameters]
TOLERANCE = 1e-6  # us

law = settings(max_examples=150, deadline=None, derandomize=True)
rngs = st.randoms(use_true_random=False)


@st.composite
def cases(draw: st.DrawFn, streams: int | None = None, level: bool = True) -> Case:
    count = streams or draw(st.sampled_from([1, 3]))
    return random_case(draw(rngs), count, level)


@law
@given(cases(level=False))
def test_no_step_is_faster_than_all_bytes_at_full_bandwidth(case: Case) -> None:
    step, copies, p = case
    limit = required_bytes(step) / p.hbm_peak
    assert simulate(step, [], p).time >= limit - TOLERANCE
    assert simulate(step, copies, p).time >= limit - TOLERANCE


@law
@given(cases())
def test_a_plan_that_moves_nothing_and_costs_nothing_is_the_baseline(case: Case) -> None:
    step, copies, p = case
    free = p.with_values(issue=0.0)
    nothing = [replace(copy, size=0) for copy in copies]
    assert simulate(step, nothing, free).time == pytest.approx(simulate(step, [], free).time, abs=TOLERANCE)


@law
@given(cases())
def test_every_byte_comes_from_l2_or_from_hbm(case: Case) -> None:
    step, copies, p = case
    result = simulate(step, copies, p)
    level = p["routing"]
    for kernel in step.kernels:
        need = kernel.other_bytes
        for read in kernel.weights:
            end = read.share_low if level < 0 else read.share_high
            need += read.stored_bytes * (read.share + abs(level) * (end - read.share))
        got = result.hits[kernel.index] + result.kernel_hbm_bytes[kernel.index]
        assert got == pytest.approx(need, abs=1.0), kernel
        assert result.hits[kernel.index] >= 0.0
    moved = sum(copy.moved for copy in result.copies)
    assert result.hbm_bytes == pytest.approx(sum(result.kernel_hbm_bytes) + moved, rel=1e-12)


@law
@given(cases())
def test_a_copy_moves_at_most_its_size_and_is_useful_at_most_once(case: Case) -> None:
    step, copies, p = case
    once = single_reader(step)
    for copy, result in zip(copies, simulate(step, copies, p).copies, strict=True):
        assert -1.0 <= result.moved <= copy.size - result.resident + 1.0
        if copy.weight in once:
            assert result.useful + result.pushed_out <= result.moved + 1.0


@law
@given(cases())
def test_streams_run_in_order_and_nothing_starts_before_its_inputs(case: Case) -> None:
    step, copies, p = case
    result = simulate(step, copies, p)
    last: dict[str, int] = {}
    for kernel in step.kernels:
        start = result.starts[kernel.index]
        assert result.ends[kernel.index] >= start
        for source in kernel.inputs:
            assert start >= result.ends[source] - TOLERANCE
        if kernel.stream in last:
            assert start >= result.ends[last[kernel.stream]] + p["gap"] - TOLERANCE
        last[kernel.stream] = kernel.index
    ends = [0.0]
    for copy, after in zip(result.copies, (c.after for c in copies), strict=True):
        released = 0.0 if after < 0 else result.ends[after]
        assert copy.start == pytest.approx(max(released, ends[-1]) + p["cmo_task"], abs=TOLERANCE)
        assert copy.end >= copy.start - TOLERANCE
        ends.append(copy.end)


@law
@given(cases(streams=1))
def test_more_hbm_bandwidth_never_hurts_the_baseline_of_one_stream(case: Case) -> None:
    step, _, p = case
    assert simulate(step, [], replace(p, hbm_peak=1.2e6)).time <= simulate(step, [], p).time + TOLERANCE


def _slower(change: str, factor: float) -> int:
    """In how many of 400 random cases raising one figure makes a plan slower."""
    rng, slower = random.Random(1), 0
    for number in range(400):
        step, copies, p = random_case(rng, 1 + 2 * (number % 2))
        more = p.with_values(**{change: p[change] * factor})
        slower += simulate(step, copies, more).time > simulate(step, copies, p).time + TOLERANCE
    return slower


def test_a_faster_copy_engine_may_make_a_plan_slower() -> None:
    """It takes bandwidth from kernels that are bound by memory: no law, and a mechanism that must be there."""
    assert _slower("cmo_bandwidth", 1.2) > 0


def test_more_usable_l2_may_make_a_plan_slower() -> None:
    assert _slower("l2_share", 1.2) > 0


def test_the_random_cases_exercise_every_rule() -> None:
    """Otherwise the laws above would hold for rules that never ran."""
    rng = random.Random(0)
    total: dict[str, int] = {}
    for number in range(800):
        step, copies, p = random_case(rng, 1 + 2 * (number % 2))
        scopes = random_scopes(rng, step) if number % 4 > 1 else []
        for rule, count in simulate(step, copies, p, scopes=scopes).rules.items():
            total[rule] = total.get(rule, 0) + count
    assert all(count >= 5 for count in total.values()), total
