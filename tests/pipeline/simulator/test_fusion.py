"""SuperKernel scopes: what they save, what cuts them, what they cost where streams overlapped."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.workload import Kernel, Workload
from pipeline.simulator.copies import Copy
from pipeline.simulator.forecast import Baseline
from pipeline.simulator.fusion import FusedScope
from pipeline.simulator.limit import required_bytes
from pipeline.simulator.machine import load_machine
from pipeline.simulator.parameters import Parameters
from pipeline.simulator.simulate import simulate
from tests.pipeline.simulator.cases import (
    MIB,
    idle,
    matmul,
    mixed_fusable,
    parameters,
    random_case,
    random_scopes,
    workload,
)

TOLERANCE = 1e-6  # us
Case = tuple[Workload, list[Copy], Parameters, list[FusedScope]]
law = settings(max_examples=150, deadline=None, derandomize=True)
WHOLE = [FusedScope(range(4))]


@st.composite
def cases(draw: st.DrawFn, streams: int | None = None) -> Case:
    rng = draw(st.randoms(use_true_random=False))
    step, copies, p = random_case(rng, streams or rng.choice([1, 3]))
    step = mixed_fusable(rng, step)
    p = p.with_values(
        launch=rng.choice([0.0, 0.5, 1.8, 3.0]), fused_gap=rng.choice([0.0, 0.2]), fusion=rng.choice([0, 1])
    )
    return step, copies, p, random_scopes(rng, step)


def vectors(*ops: str, stream: str = "main") -> Workload:
    """Kernels of nothing but fixed time, one after the other."""
    return workload(*(Kernel(i, op, f"m{i}", "vector", stream) for i, op in enumerate(ops)))


def us(step: Workload, scopes: list[FusedScope], **values: float) -> float:
    return simulate(step, [], parameters(fixed=2.0, **values), scopes=scopes).time


def test_every_kernel_after_the_first_loses_its_launch_and_its_gap() -> None:
    step = vectors("RmsNorm", "SwiGLU", "RmsNorm", "SwiGLU")
    assert us(step, [], gap=0.1) == pytest.approx(4 * 2.0 + 3 * 0.1)
    assert us(step, WHOLE, gap=0.1, launch=1.3) == pytest.approx(2.0 + 3 * 0.7)
    assert us(step, WHOLE, gap=0.1, launch=1.3, fused_gap=0.2) == pytest.approx(2.0 + 3 * (0.7 + 0.2))


def test_no_kernel_loses_more_than_its_fixed_time_and_none_of_its_transfer() -> None:
    step = workload(*(matmul(i, f"w{i}", 10 * MIB) for i in range(4)))
    transfer = 10 * MIB / 1e6
    assert us(step, WHOLE, launch=5.0) == pytest.approx(2.0 + 4 * transfer)


@pytest.mark.parametrize(
    ("op", "fusion", "saved"),
    [("SwiGLU", 1, 3), ("Cast", 1, 1), ("Add", 1, 3), ("Add", 0, 1), ("FusedInferAttentionScore", 0, 1)],
)
def test_what_does_not_fuse_ends_one_superkernel_and_the_next_begins_behind_it(
    op: str, fusion: int, saved: int
) -> None:
    step = vectors("RmsNorm", "RmsNorm", op, "RmsNorm")
    assert us(step, [], launch=1.0) - us(step, WHOLE, launch=1.0, fusion=fusion) == pytest.approx(saved)


def test_what_is_outside_pays_everything() -> None:
    step = vectors("RmsNorm", "RmsNorm", "RmsNorm", "RmsNorm")
    assert us(step, [FusedScope(range(1, 3))], launch=1.0, gap=0.5) == pytest.approx(4 * 2.0 - 1.0 + 2 * 0.5)


def test_two_scopes_side_by_side_are_two_superkernels() -> None:
    step = vectors("RmsNorm", "RmsNorm", "RmsNorm", "RmsNorm")
    halves = [FusedScope(range(2)), FusedScope(range(2, 4))]
    assert us(step, halves, launch=1.0) == pytest.approx(4 * 2.0 - 2 * 1.0)


def test_overlapping_scopes_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="overlap"):
        us(vectors("RmsNorm", "RmsNorm"), [FusedScope(range(2)), FusedScope(range(1, 2))])


def two_streams(first: str, second: str) -> Workload:
    """Two kernels on each of two streams that do not depend on each other; 12 of 24 cores each."""
    return workload(
        Kernel(0, "MatMul", "a0", first, "a", 12),  # type: ignore[arg-type]
        Kernel(1, "MatMul", "a1", first, "a", 12),  # type: ignore[arg-type]
        Kernel(2, "SwiGLU", "b0", second, "b", 12),  # type: ignore[arg-type]
        Kernel(3, "SwiGLU", "b1", second, "b", 12),  # type: ignore[arg-type]
    )


def test_streams_that_become_one_superkernel_run_one_after_the_other() -> None:
    step = two_streams("cube", "cube")
    assert us(step, []) == pytest.approx(4.0)
    assert us(step, WHOLE, launch=0.5) == pytest.approx(2.0 + 3 * 1.5)  # a loss, though launches are saved
    per_stream = [FusedScope(range(2)), FusedScope(range(2, 4))]
    assert us(step, per_stream, launch=0.5) == pytest.approx(2.0 + 1.5)


@pytest.mark.parametrize(
    ("second", "time"),
    [("vector", 2.0 + 1.5), ("cube", 2.0 + 3 * 1.5), ("mix", 2.0 + 3 * 1.5)],
)
def test_stream_fusion_keeps_pure_cube_beside_pure_vector_only(second: str, time: float) -> None:
    step = two_streams("cube", second)
    fused = us(step, [FusedScope(range(4), stream_fusion=True)], launch=0.5)
    assert fused == pytest.approx(time)
    assert us(step, WHOLE, launch=0.5) == pytest.approx(2.0 + 3 * 1.5)


def test_a_stream_outside_the_scope_is_not_held_up() -> None:
    step = workload(
        Kernel(0, "MatMul", "a0", "cube", "a", 12),
        Kernel(1, "MatMul", "a1", "cube", "a", 12),
        Kernel(2, "MatMul", "b0", "cube", "b", 12),
    )
    assert us(step, [FusedScope(range(2))], launch=0.5) == pytest.approx(3.5)


def test_measured_durations_lose_their_launch_and_idle_time_does_not() -> None:
    measured = [Kernel(i, "MatMul", f"m{i}", "cube", fixed_us=7.0) for i in range(2)]
    assert us(workload(*measured), [FusedScope(range(2))], launch=1.0) == pytest.approx(13.0)
    assert us(workload(measured[0], idle(1, 7.0)), [FusedScope(range(2))], launch=1.0) == pytest.approx(14.0)


@law
@given(cases())
def test_no_step_is_faster_than_its_bytes(case: Case) -> None:
    step, copies, p, scopes = case
    p = p.with_values(routing=0.0)
    assert simulate(step, copies, p, scopes=scopes).time >= required_bytes(step) / p.hbm_peak - TOLERANCE


@law
@given(cases(streams=1))
def test_on_one_stream_no_scope_hurts_the_baseline_if_a_fused_gap_is_no_longer_than_a_gap(case: Case) -> None:
    step, _, p, scopes = case
    p = p.with_values(fused_gap=min(p["fused_gap"], p["gap"]))
    assert simulate(step, [], p, scopes=scopes).time <= simulate(step, [], p).time + TOLERANCE


@law
@given(cases(streams=1))
def test_scopes_that_save_nothing_are_the_baseline_with_and_without_copies(case: Case) -> None:
    step, copies, p, scopes = case
    p = p.with_values(launch=0.0, fused_gap=p["gap"])
    assert simulate(step, copies, p, scopes=scopes).time == simulate(step, copies, p).time


@law
@given(cases())
def test_scopes_of_one_kernel_each_are_the_baseline(case: Case) -> None:
    step, copies, p, _ = case
    singles = [FusedScope(range(i, i + 1)) for i in range(len(step.kernels))]
    assert simulate(step, copies, p, scopes=singles).time == simulate(step, copies, p).time


@law
@given(cases(streams=1))
def test_a_longer_launch_saves_at_least_as_much_on_one_stream(case: Case) -> None:
    step, _, p, scopes = case
    more = p.with_values(launch=p["launch"] + 0.7)
    assert simulate(step, [], more, scopes=scopes).time <= simulate(step, [], p, scopes=scopes).time + TOLERANCE


@law
@given(cases(streams=3))
def test_kernels_of_one_superkernel_never_overlap_without_stream_fusion(case: Case) -> None:
    step, copies, p, scopes = case
    step = replace(step, kernels=tuple(replace(k, op="MatMul") for k in step.kernels))  # nothing cuts but idle time
    scopes = [replace(scope, stream_fusion=False) for scope in scopes]
    result = simulate(step, copies, p, scopes=scopes)
    for scope in scopes:
        members = [k for k in scope.kernels if step.kernels[k].engine != "idle"]
        cuts = [k for k in scope.kernels if step.kernels[k].engine == "idle"]
        for a in members:
            for b in members:
                if a < b and not any(a < cut < b for cut in cuts):
                    one_after_the_other = (
                        result.starts[b] >= result.ends[a] - TOLERANCE or result.starts[a] >= result.ends[b] - TOLERANCE
                    )
                    assert one_after_the_other, (a, b)


def test_a_forecast_with_scopes_is_paired_with_the_same_baseline_and_equals_many_plans() -> None:
    rng = random.Random(3)
    step, copies, _ = random_case(rng, 3)
    scopes = [FusedScope(range(len(step.kernels)))]
    baseline = Baseline(step, load_machine("atlas_a3"), draws=16)
    found = baseline.forecast(copies, scopes)
    assert found.baseline_step.time == baseline.step.time
    assert found.optimised_step.rules["fused"] > 0
    (many,) = baseline.evaluate_many([copies], 16, scopes)
    assert (many.value, many.low, many.high) == (found.gain.value, found.gain.low, found.gain.high)
    assert baseline.evaluate_many([copies])[0].value != many.value  # scopes matter


def test_kernels_that_fuse_only_sometimes_widen_the_band() -> None:
    step = vectors("RmsNorm", "FusedInferAttentionScore", "RmsNorm", "RmsNorm")
    machine = load_machine("atlas_a3")
    gain = Baseline(step, machine, draws=64).forecast([], WHOLE).gain
    plain = Baseline(vectors("RmsNorm", "SwiGLU", "RmsNorm", "RmsNorm"), machine, draws=64).forecast([], WHOLE).gain
    assert gain.low is not None and plain.low is not None
    assert 0 < gain.low < plain.low
