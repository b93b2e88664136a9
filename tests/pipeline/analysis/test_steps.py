"""Steps, phases and layers found in a sequence of kernels."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.analysis.analyse import AnalysisOptions, analyse
from pipeline.analysis.layers import Block, find_blocks
from pipeline.simulator.machine import Machine, load_machine
from tests.pipeline.analysis.frames import in_order, matmul, profile, steps, vector


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine("atlas_a3")


def layer(rows: int = 8) -> list[dict[str, Any]]:
    return [
        vector("AddRmsNorm", 8 * 4096, 3.0),
        matmul(rows, 4096, 6144, 36.0),
        vector("SwiGlu", 8 * 6144, 4.0),
        matmul(rows, 6144, 4096, 35.0),
    ]


def step(layers: int = 4, rows: int = 8) -> list[dict[str, Any]]:
    head = [vector("GatherV2", 8 * 4096, 2.5)]
    tail = [vector("RmsNorm", 8 * 4096, 2.6), matmul(rows, 4096, 32000, 190.0)]
    return in_order([*head, *(k for _ in range(layers) for k in layer(rows)), *tail])


def slower(kernels: list[dict[str, Any]], factor: float, which: Any) -> list[dict[str, Any]]:
    return [k | {"duration_us": k["duration_us"] * factor} if which(k) else k for k in kernels]


def test_by_step_id_the_first_step_is_left_out_and_times_are_medians(machine: Machine) -> None:
    kernels = slower(steps(step(), 6), 1.4, lambda k: k["step"] == 3)  # the first one
    kernels = slower(kernels, 1.2, lambda k: k["step"] == 5)  # an outlier
    phase = analyse(profile(kernels), machine).phases[0]
    assert (phase.name, phase.found_by, phase.steps, phase.dropped) == ("decode", "step_id", 5, 1)
    head = next(h for h in phase.hotspots if "4096,32000" in h.shapes)
    assert head.each_us == pytest.approx(190.0)
    assert phase.kernels == len(step())


@pytest.mark.parametrize("pause", [20.0, 0.1])
def test_without_a_step_id_the_sequence_tells(machine: Machine, pause: float) -> None:
    named = analyse(profile(steps(step(), 6)), machine).phases[0]
    phase = analyse(profile(steps(step(), 6, pause, named=False)), machine).phases[0]
    assert (phase.found_by, phase.kernels, phase.steps) == ("repetition", named.kernels, 5)
    assert phase.step.value == pytest.approx(named.step.value, rel=0.01)
    places = [sorted(c.target.position for c in p.candidates) for p in (phase, named)]
    assert places[0] == places[1] and len(places[0]) > 1


def test_a_step_that_lacks_kernels_takes_no_part(machine: Machine) -> None:
    kernels = steps(step(), 6)
    lost = [k for n, k in enumerate(kernels) if n != 2 * len(step()) + 3]
    result = analyse(profile(lost), machine)
    assert (result.phases[0].steps, result.phases[0].different) == (4, 1)
    assert "different-steps" in [p.code for p in result.problems]


def test_one_step_only_is_said(machine: Machine) -> None:
    result = analyse(profile(step()), machine)
    assert result.phases[0].dropped == 0
    assert [p.code for p in result.problems] == ["one-step"]


def test_a_step_that_the_host_limits_is_told(machine: Machine) -> None:
    eager = in_order(step(), gap=0.1)
    eager = [k | {"start_us": k["start_us"] + 60.0 * n} for n, k in enumerate(eager)]
    codes = [p.code for p in analyse(profile(steps(eager, 4)), machine).problems]
    assert codes == ["idle-step"]
    assert not analyse(profile(steps(step(), 4)), machine).problems


def test_layers_are_no_steps(machine: Machine) -> None:
    """Layers repeat as steps do, but embedding and head stand around them once."""
    phase = analyse(profile(step(layers=12)), machine).phases[0]
    assert phase.found_by == "none" and phase.kernels == len(step(layers=12))


def test_decode_is_told_from_prefill_by_rows(machine: Machine) -> None:
    many = steps(step(rows=2048), 2)
    few = steps(step(), 5)
    later = max(k["start_us"] for k in many) + 1000
    both = many + [k | {"start_us": k["start_us"] + later, "step": k["step"] + 10} for k in few]
    result = analyse(profile(both), machine)
    assert [(p.name, p.rows, p.steps) for p in result.phases] == [("decode", 8, 4), ("prefill", 2048, 1)]
    assert result.phases[0].candidates and not result.phases[1].candidates
    only = analyse(profile(both), machine, AnalysisOptions(phase="prefill"))
    assert [p.name for p in only.phases] == ["prefill"]


def test_a_short_prefill_beside_decode_is_told_too(machine: Machine) -> None:
    later = 1e5
    few, short = steps(step(), 5), steps(step(rows=256), 2)
    both = few + [k | {"start_us": k["start_us"] + later, "step": k["step"] + 10} for k in short]
    assert [(p.name, p.rows) for p in analyse(profile(both), machine).phases] == [("decode", 8), ("prefill", 256)]
    alone = analyse(profile(short), machine).phases[0]
    assert alone.name == "decode"  # 256 sequences decode as well; analysis.decode_rows is for the user to say
    assert analyse(profile(short), machine, AnalysisOptions(decode_rows=128)).phases[0].name == "prefill"


def test_gradients_are_training(machine: Machine) -> None:
    kernels = in_order([*layer(), vector("FlashAttentionScoreGrad", 4096, 50.0)])
    phase = analyse(profile(kernels), machine).phases[0]
    assert phase.name == "training" and not phase.candidates and not phase.chains


def test_layers_of_a_step(machine: Machine) -> None:
    phase = analyse(profile(steps(step(layers=7), 3)), machine).phases[0]
    assert ("2", 7, 4) in phase.layers


def test_dense_and_moe_layers_are_two_stretches() -> None:
    found = find_blocks([90, 91, *([1, 2, 3, 4] * 3), *([1, 2, 3, 5, 6, 7] * 10), 92])
    assert Block(14, 6, 10) in found and any(b.period == 4 and b.layers >= 2 for b in found)


@settings(deadline=None)
@given(
    period=st.integers(4, 12),
    layers=st.integers(3, 20),
    before=st.integers(0, 9),
    after=st.integers(0, 9),
    data=st.data(),
)
def test_any_repetition_of_different_kernels_is_found(
    period: int, layers: int, before: int, after: int, data: st.DataObject
) -> None:
    one = data.draw(st.permutations(range(period)))
    values = [*range(100, 100 + before), *(list(one) * layers), *range(200, 200 + after)]
    found = max(find_blocks(values), key=lambda b: b.period * b.layers)
    assert (found.first, found.period, found.layers) == (before, period, layers)


def test_an_operator_that_comes_again_and_again_is_no_layer() -> None:
    assert find_blocks([1] * 3 + [2, 3]) == [] and find_blocks([1, 2] * 2) == []


def test_long_sequences_only_try_distances_between_equal_kernels() -> None:
    values = np.tile(np.arange(37), 300)
    assert find_blocks(values) == [Block(0, 37, 300)]


def test_prefill_between_decode_steps_is_found_without_step_ids(machine: Machine) -> None:
    at, kernels = 0.0, []
    for rows in (2048, 8, 8, 8, 8, 2048, 8, 8, 8):
        one = step(rows=rows)
        kernels += [k | {"start_us": k["start_us"] + at} for k in one]
        at = max(k["start_us"] + k["duration_us"] for k in kernels) + 30.0
    result = analyse(profile(kernels), machine)
    assert [(p.name, p.rows, p.steps) for p in result.phases] == [("decode", 8, 6), ("prefill", 2048, 1)]


def test_prefill_steps_of_another_length_between_decode_steps(machine: Machine) -> None:
    """Their kernels are others: the distance between two starts of a step is not regular."""
    prefill = in_order(
        [vector("GatherV2", 2048 * 4096, 20.0)]
        + [k for _ in range(4) for k in layer(2048)[1:]]
        + [vector("RmsNorm", 8 * 4096, 2.6), matmul(8, 4096, 32000, 190.0)]
    )
    at, kernels = 0.0, []
    for one in (step(), step(), prefill, step(), step(), step(), prefill, step()):
        kernels += [k | {"start_us": k["start_us"] + at} for k in one]
        at = max(k["start_us"] + k["duration_us"] for k in kernels) + 30.0
    result = analyse(profile(kernels), machine)
    assert [(p.name, p.steps, p.dropped) for p in result.phases] == [("decode", 5, 1), ("prefill", 1, 1)]
    (one_step,) = [p for p in result.problems if p.code == "one-step"]
    assert one_step.message.startswith("prefill: one step is left after the first: times are single")


def test_one_step_with_a_step_id_is_a_step_that_was_found(machine: Machine) -> None:
    result = analyse(profile([k | {"step": 19} for k in step()]), machine)
    assert result.phases[0].found_by == "step_id"
    assert result.problems[0].message.startswith("decode: there is one step: nothing was left out as warm-up")


@pytest.mark.parametrize("kernel", [matmul(8, 4096, 4096, 25.0), vector("Add", 8, 1.0), vector("Add", 8, 0.0)])
def test_a_single_kernel_and_many_of_one_kind(machine: Machine, kernel: dict[str, Any]) -> None:
    for count in (1, 5000):
        result = analyse(profile(in_order([kernel] * count)), machine)
        assert sum(p.kernels * (p.steps + p.dropped) for p in result.phases) + result.outside == count


def test_a_stream_with_few_kernels_in_each_layer_has_layers_too(machine: Machine) -> None:
    """Shared experts on a stream of their own: three kernels a layer, one line each and not one per layer."""
    kernels, at = [vector("GatherV2", 4096, 2.0, start_us=-3.0)], 0.0
    for _ in range(6):
        shared = [matmul(8, 4096, 4096, 25.0), vector("SwiGlu", 8 * 4096, 4.0), matmul(8, 2048, 4096, 13.0)]
        one = [k | {"stream": "7"} for k in shared]
        one[0]["start_us"] = at + 40.0
        kernels += in_order([*(k | {} for k in layer()), *one], start=at)
        at = max(k["start_us"] + k["duration_us"] for k in kernels) + 1.0
    phase = analyse(profile(in_order(sorted(kernels, key=lambda k: k["start_us"]))), machine).phases[0]
    assert ("7", 6, 3) in phase.layers and ("2", 6, 4) in phase.layers
    mine = [c for c in (*phase.candidates, *phase.refused) if c.target.stream == "7"]
    assert len(mine) == 2 and all(c.calls == 6 and c.target.period == 3 for c in mine)
