"""Steady state: short versions of a workload stand for the whole where layers repeat, and only there."""

from dataclasses import replace

import pytest

from models.workload import Kernel, Workload
from pipeline.simulator.copies import Copy
from pipeline.simulator.simulate import simulate
from pipeline.simulator.steady import shortened, steady_state
from tests.pipeline.simulator.cases import idle, matmul, parameters

MB = 1_000_000
LAYERS = 12


def model(sizes: tuple[int, ...] = (10 * MB,) * LAYERS, multi_stream: bool = False) -> Workload:
    """An embedding, layers of a window and two MatMuls (the second on a stream of its own if asked for), a head."""
    kernels: list[Kernel] = [matmul(0, "embed", MB)]
    side = "side" if multi_stream else "main"
    for layer, size in enumerate(sizes):
        n = 3 * layer + 1
        kernels += [
            replace(idle(n, 8.0, inputs=[n - 2 + (layer == 0)]), layer=layer),
            replace(matmul(n + 1, f"{layer}.up", size, inputs=[n], cores=12), layer=layer),
            replace(matmul(n + 2, f"{layer}.down", 6 * MB, side, [n], cores=12), layer=layer),
        ]
    kernels.append(matmul(len(kernels), "head", 20 * MB, inputs=[len(kernels) - 2, len(kernels) - 1]))
    return Workload(tuple(kernels), layers=len(sizes))


def plan(workload: Workload, size: int = 5 * MB) -> list[Copy]:
    """In each layer its own up, and the next layer's down."""
    copies = []
    for layer in range(workload.layers):
        copies.append(Copy(f"{layer}.up", 3 * layer + 1, size))
        if layer + 1 < workload.layers:
            copies.append(Copy(f"{layer + 1}.down", 3 * layer + 2, 3 * MB))
    return copies


@pytest.mark.parametrize("multi_stream", [False, True])
@pytest.mark.parametrize("planned", [False, True])
def test_the_extrapolated_step_is_the_step(multi_stream: bool, planned: bool) -> None:
    workload = model(multi_stream=multi_stream)
    copies = plan(workload) if planned else []
    p = parameters(fixed=1.0, gap=0.1, cmo_task=1.0, l2_mib=20)
    steady = steady_state(workload, copies, p)
    assert steady.verified, steady.why
    assert steady.step == pytest.approx(simulate(workload, copies, p).time, rel=1e-6)
    assert 8.0 < steady.layer < steady.step / LAYERS  # embedding and head belong to no layer


def test_layers_that_differ_are_all_run() -> None:
    workload = model((10 * MB,) * 6 + (30 * MB,) * 6)
    steady = steady_state(workload, [], parameters())
    assert not steady.verified and steady.why == "layer 6 has other kernels than layer 1"
    assert steady.step == simulate(workload, [], parameters()).time


def test_a_plan_that_differs_between_layers_is_run_whole() -> None:
    workload = model()
    copies = [copy for copy in plan(workload) if copy.weight != "7.up"]
    steady = steady_state(workload, copies, parameters())
    assert not steady.verified and steady.why == "layer 7 issues other copies than layer 1"
    assert steady.step == simulate(workload, copies, parameters()).time


def test_increments_that_do_not_agree_are_not_extrapolated() -> None:
    workload = model((MB,) * LAYERS)
    copies = plan(workload, MB)
    p = parameters(cmo_bandwidth=0.1e6, l2_mib=20)
    steady = steady_state(workload, copies, p)
    assert not steady.verified and steady.why == "a third layer adds 13.736 us, a fourth 16.694 us"
    assert steady.step == simulate(workload, copies, p).time


def test_a_chain_that_falls_behind_is_not_steady_although_increments_agree() -> None:
    """Each layer is late by the same time until the chain is a whole layer late: the step is 4 % off by then."""
    workload = model((30 * MB,) * LAYERS, multi_stream=True)
    copies = plan(workload, 30 * MB)
    p = parameters(cmo_task=20.0, cmo_bandwidth=0.4e6, l2_mib=200)
    steady = steady_state(workload, copies, p)
    assert not steady.verified and "fall behind" in steady.why
    assert steady.step == simulate(workload, copies, p).time


def test_few_layers_are_not_shortened() -> None:
    steady = steady_state(model((MB,) * 4), [], parameters())
    assert not steady.verified and steady.why == "4 layers are too few to shorten"


def test_a_shortened_workload_is_the_model_with_fewer_layers() -> None:
    workload = model(multi_stream=True)
    short, copies = shortened(workload, plan(workload), 3)
    fewer = model((10 * MB,) * 3, multi_stream=True)
    assert short.kernels == fewer.kernels
    assert copies == plan(fewer)
