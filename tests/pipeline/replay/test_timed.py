"""Replay: a measured step comes out of the simulator as it was measured, and only traffic can be saved."""

import pytest

from models.workload import Kernel, ModuleCall, WeightRead, Workload
from pipeline.analysis.operators import operator_table
from pipeline.mapping.placed import place
from pipeline.replay.timed import profile_workload, replayed, weight_name
from pipeline.simulator.copies import Copy
from pipeline.simulator.simulate import simulate
from tests.pipeline.mapping.steps import make_step
from tests.pipeline.simulator.cases import parameters

MIB = 1 << 20
ROWS = [("AddRmsNorm", 0, 0), ("MatMulV3", 0, 8 * MIB), ("SwiGlu", 0, 0), ("MatMulV3", 0, 4 * MIB)]


def model() -> Workload:
    reads = [(), (WeightRead("up.weight", 8 * MIB),), (), (WeightRead("down.weight", 4 * MIB),)]
    ops = [("AddRmsNorm", "norm"), ("MatMul", "up"), ("SwiGLU", ""), ("MatMul", "down")]
    kernels = tuple(
        Kernel(k, op, module, "cube" if reads[k] else "vector", weights=reads[k], inputs=(k - 1,) if k else ())
        for k, (op, module) in enumerate(ops)
    )
    calls = {module: (ModuleCall(module, 2 * k, 2 * k + 1, k - 1 if k else None, k),) for k, (_, module) in
             enumerate(ops) if module}  # fmt: skip
    return Workload(kernels, calls, 1, 1.0, {"up.weight": 8 * MIB, "down.weight": 4 * MIB})


def test_the_step_of_a_profile_takes_in_the_replay_what_it_took() -> None:
    step = make_step(ROWS, us=[3.0, 12.0, 4.0, 7.0], gap=0.0)
    found = profile_workload(step)
    assert simulate(found.workload, [], parameters()).time == pytest.approx(26.0)


def test_a_prefetch_in_the_replay_saves_the_traffic_of_the_weight_and_not_the_rest_of_its_kernel() -> None:
    """8 MiB take 8.4 us at 1 MB/us, so 3.6 us of the 12 stay."""
    step = make_step(ROWS, us=[30.0, 12.0, 4.0, 7.0], gap=0.0)
    found = profile_workload(step)
    copies = [Copy(weight_name(1), -1, 8 * MIB, 0)]
    assert simulate(found.workload, copies, parameters()).time == pytest.approx(53.0 - 8 * MIB / 1e6)


def test_waits_that_no_kernel_explains_stay_in_the_step() -> None:
    step = make_step(ROWS, us=5.0, starts=[0.0, 5.0, 40.0, 45.0])
    found = profile_workload(step)
    assert found.idle_us == pytest.approx(30.0)
    assert simulate(found.workload, [], parameters()).time == pytest.approx(50.0)


def test_a_second_stream_runs_beside_the_first_as_in_the_profile() -> None:
    rows = [("AddRmsNorm", 0, 0), ("hcom_allReduce_", 1, 0), ("SwiGlu", 0, 0)]
    found = profile_workload(make_step(rows, us=[5.0, 20.0, 6.0], starts=[0.0, 0.0, 5.0]))
    assert simulate(found.workload, [], parameters()).time == pytest.approx(20.0)


def test_a_mapped_step_keeps_the_names_of_the_model_and_takes_the_times_of_the_profile() -> None:
    step = make_step(ROWS, us=[3.0, 12.0, 4.0, 7.0], gap=0.0)
    found = replayed(model(), step, place(step, model(), operator_table()))
    assert [k.measured_us for k in found.workload.kernels] == [3.0, 12.0, 4.0, 7.0]
    assert found.workload.readers("up.weight") == (1,)
    assert simulate(found.workload, [], parameters()).time == pytest.approx(26.0)


def test_kernels_that_only_the_profile_has_run_where_they_ran_and_calls_keep_their_kernels() -> None:
    rows = [ROWS[0], ("TensorMove", 0, 0), *ROWS[1:]]
    step = make_step(rows, us=[3.0, 50.0, 12.0, 4.0, 7.0], gap=0.0)
    found = replayed(model(), step, place(step, model(), operator_table()))
    assert [k.op for k in found.workload.kernels] == ["AddRmsNorm", "TensorMove", "MatMul", "SwiGLU", "MatMul"]
    assert found.workload.calls["up"][0].output_kernel == 2
    assert found.workload.is_ancestor(0, 2)
    assert simulate(found.workload, [], parameters()).time == pytest.approx(76.0)


def test_a_kernel_that_the_profile_does_not_have_takes_no_time() -> None:
    step = make_step([ROWS[0], ROWS[1], ROWS[3]], us=[3.0, 12.0, 7.0], gap=0.0)
    found = replayed(model(), step, place(step, model(), operator_table()))
    assert found.not_run == (2,)
    assert simulate(found.workload, [], parameters()).time == pytest.approx(22.0)
