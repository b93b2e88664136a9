"""What is measured: unions of intervals, targets and their windows, streams, tails, movers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.comparison.changes import Measured
from pipeline.comparison.checks import drift, forbidding, weakening
from pipeline.comparison.measure import measure, memory_bound
from pipeline.comparison.pairing import pair
from pipeline.comparison.side import Side
from tests.pipeline.comparison.cases import Kernel, decode_step, machine, run, side, with_copies


@pytest.fixture(scope="module")
def before() -> Side:
    return side(run(seed=1))


def measured(before: Side, kernels: list[Kernel], wanted: tuple[str, ...] = ()) -> Measured:
    after = side(kernels, "b")
    return measure(before, after, pair(before, after), machine().hbm_peak, wanted)


def by_minutes(start: np.ndarray, end: np.ndarray) -> float:
    """Length of a union of intervals with whole ends, counted unit by unit."""
    return float(len({t for a, b in zip(start.tolist(), end.tolist(), strict=True) for t in range(int(a), int(b))}))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=12))
def test_busy_time_counts_overlaps_once(spans: list[tuple[int, int]]) -> None:
    start = np.array([[float(a) for a, _ in spans]])
    length = np.array([[float(n) for _, n in spans]])
    one = Side.__new__(Side)
    object.__setattr__(one, "start", start)
    object.__setattr__(one, "duration", length)
    assert one.busy()[0] == by_minutes(start[0], start[0] + length[0])


def test_every_kernel_has_its_times_of_every_step(before: Side) -> None:
    assert (before.steps, len(before)) == (6, len(decode_step()))
    medians = np.median(before.duration, axis=0)
    assert medians == pytest.approx(before.sequence.length)
    assert before.step.mean() == pytest.approx(before.phase.step.value, rel=0.01)
    for kernel, name in enumerate(before.names):
        expected = next(k["duration_us"] for k in decode_step() if k["name"] == name)
        assert medians[kernel] == pytest.approx(expected, rel=0.06)


def test_targets_are_the_memory_bound_matmuls_by_place(before: Side) -> None:
    found = measured(before, run(factors={"gate_up": 0.8}, seed=2))
    assert [(t.name, t.calls) for t in found.targets] == [("gate_up", 4), ("head", 1), ("down", 4), ("o_proj", 4)]
    gate = found.targets[0]
    assert gate.faster is not None and gate.faster.low is not None and gate.faster.high is not None
    assert gate.faster.low < 20.0 < gate.faster.high and gate.faster.low > 17.0
    assert gate.before.value == pytest.approx(70, rel=0.02) and gate.after.value == pytest.approx(56, rel=0.02)
    assert found.target_sum is not None and found.target_sum.calls == 13
    assert found.movers[0].label == f"{gate.label}, stream 2"
    assert found.movers[0].delta_us == pytest.approx(-4 * 14, rel=0.1)


def test_named_targets_alone_are_summed(before: Side) -> None:
    every = measured(before, run(factors={"gate_up": 0.8}, seed=2))
    label = every.targets[0].label
    found = measured(before, run(factors={"gate_up": 0.8}, seed=2), (label,))
    assert found.target_sum is not None and found.target_sum.calls == 4 and len(found.targets) == 1


def test_a_rate_above_the_hbm_peak_came_from_l2(before: Side) -> None:
    found = measured(before, run(factors={"gate_up": 0.35}, seed=2))
    assert [t.name for t in found.targets if t.from_l2] == ["gate_up"]


def test_the_window_of_a_target_goes_back_to_the_target_before_it_without_communication(before: Side) -> None:
    found = measured(before, run(factors={"post_norm": 1.4}, seed=2))
    windows = {t.name: t.window for t in found.targets}
    gate, down = windows["gate_up"], windows["down"]
    assert gate is not None and gate.calls == 4 and gate.before is not None
    assert gate.before.value == pytest.approx(4 * 5.0, rel=0.05)
    assert gate.faster is not None and gate.faster.high is not None and gate.faster.high < -30
    assert down is not None and down.before is not None and down.before.value == pytest.approx(4 * 3.0, rel=0.05)


def test_a_kernel_that_takes_much_longer_is_a_tail_with_its_layer(before: Side) -> None:
    def late(kernels: list[Kernel]) -> list[Kernel]:
        second = [n for n, k in enumerate(kernels) if k["name"] == "o_proj"][1]
        kernels[second]["duration_us"] += 12.0
        return kernels

    found = measured(before, run(edit=late, seed=2))
    assert [c.label for c in found.slower] == ["MatMulV3 1/7 of layer 1, stream 2"]
    assert not [s for s in found.streams if s.late and s.busy.before is None]


def test_waiting_in_collectives_is_no_tail(before: Side) -> None:
    assert not measured(before, run(factors={"all_reduce": 3.0}, seed=2)).slower


def test_a_stream_that_ends_behind_all_others_is_late(before: Side) -> None:
    def side_stream(kernels: list[Kernel]) -> list[Kernel]:
        length = sum(k["duration_us"] for k in kernels)
        late = {**kernels[0], "op_type": "TensorMove", "duration_us": length + 60.0, "stream": "8", "name": "late"}
        return [late, *kernels]

    found = measured(before, run(edit=side_stream, seed=2))
    assert [(s.name, s.late) for s in found.streams] == [("2", False), ("8", True)]
    assert found.step.faster is not None and found.step.faster.high is not None and found.step.faster.high < 0


def test_copies_are_counted_apart(before: Side) -> None:
    found = measured(before, run(edit=with_copies, seed=2))
    assert found.copies is not None and found.copies.before is None and found.copies.after is not None
    assert found.copies.after.value == pytest.approx(4 * 8.0, rel=0.01)
    assert "Cmo" not in {c.label for c in found.movers}


def test_a_slower_clock_is_told_as_drift_and_noise_is_not(before: Side) -> None:
    slow = {k["name"]: 1.04 for k in decode_step()}
    assert [p.code for p in drift(measured(before, run(factors=slow, seed=2)))] == ["drift"]
    assert drift(measured(before, run(seed=3))) == []


def test_what_can_not_be_compared_is_refused_with_the_reason(before: Side) -> None:
    def codes(kernels: list[Kernel], name: str = "b") -> list[str]:
        after = side(kernels, name)
        return [p.code for p in forbidding(before, after, pair(before, after))]

    def smaller(kernels: list[Kernel]) -> list[Kernel]:
        return [{**k, "input_shapes": (k.get("input_shapes") or "").replace("4096", "2560")} for k in kernels]

    assert codes(run(seed=2)) == []
    assert codes(run(seed=1), "a") == ["same-profile"]
    assert codes(run(edit=smaller, seed=2)) == ["other-model"]
    assert codes(run(decode_step(layers=2), seed=2)) == ["other-model"]
    assert codes(run(decode_step(rows=16), seed=2)) == ["other-batch"]


def test_super_kernels_hide_matmuls_and_are_no_other_model(before: Side) -> None:
    def fused(kernels: list[Kernel]) -> list[Kernel]:
        apart = ("gate_up", "swiglu", "down")
        kept = [k for k in kernels if k["name"] not in apart]
        one = {"op_type": "SuperKernel", "core": "MIX_AIC", "duration_us": 100.0, "name": "te_superkernel_0"}
        return [x for k in kept for x in ((k, dict(one)) if k["name"] == "post_norm" else (k,))]

    after = side(run(edit=fused, seed=2), "b")
    pairs = pair(before, after)
    assert forbidding(before, after, pairs) == []
    assert "different-kernels" in [p.code for p in weakening(before, after, pairs)]
    found = measure(before, after, pairs, machine().hbm_peak)
    assert found.unpaired_targets == 8 and found.target_sum is not None and found.target_sum.calls == 5
    assert found.step.faster is not None and found.step.faster.low is not None and found.step.faster.low > 0


def test_a_baseline_that_prefetches_is_told(before: Side) -> None:
    prefetching, after = side(run(edit=with_copies, seed=2), "b"), side(run(seed=1), "a")
    codes = [p.code for p in weakening(prefetching, after, pair(prefetching, after))]
    assert codes == ["baseline-prefetches"]


def test_every_memory_bound_target_has_a_weight(before: Side) -> None:
    assert {before.names[k] for k in memory_bound(before)} == {"o_proj", "gate_up", "down", "head"}
