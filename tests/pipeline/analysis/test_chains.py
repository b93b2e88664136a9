"""Chains of short kernels that a SuperKernel could hold."""

from typing import Any

import pytest

from pipeline.analysis.analyse import analyse
from pipeline.analysis.results import Chain
from pipeline.simulator.machine import Machine, load_machine
from tests.pipeline.analysis.frames import collective, in_order, matmul, profile, vector


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine("atlas_a3")


def chains(machine: Machine, *kernels: dict[str, Any]) -> tuple[Chain, ...]:
    head = matmul(8, 4096, 32000, 190.0)  # a step of decode
    return analyse(profile(in_order([head, collective(9.0), *kernels])), machine).phases[0].chains


def short(name: str = "Mul", **more: Any) -> dict[str, Any]:
    return vector(name, 4096, 2.0, **more)


def test_every_kernel_after_the_first_saves_its_launch_and_its_gap(machine: Machine) -> None:
    (chain,) = chains(machine, *(short() for _ in range(5)))
    assert (chain.kernels, chain.launch_bound, chain.calls, chain.worth) == (5, 5, 1, True)
    assert chain.saving.value == pytest.approx(4 * (1.3 + 0.1))  # nominal launch, measured gap
    assert (chain.saving.low or 0) < chain.saving.value <= (chain.saving.high or 0)
    assert chain.saving.provenance == "modelled"
    assert chain.rows == ((2, 6),)


def test_a_launch_is_at_most_what_bytes_and_flops_leave(machine: Machine) -> None:
    # 4 MiB moved in 3 us: 2.85 us of it at the bandwidth that streaming kernels reach
    busy = vector("Mul", 1 << 20, 3.0, aiv_us=2.9)
    (chain,) = chains(machine, busy, busy)
    rest = 3.0 - 2 * 2 * (1 << 20) / (1.6e6 * 0.92)
    assert chain.saving.value == pytest.approx(rest + 0.1, abs=1e-6) and rest < 0.2


@pytest.mark.parametrize(
    "cut", [collective(5.0), short("Cast"), short(core="AI_CPU"), short("StridedSliceD")], ids=lambda k: k["op_type"]
)
def test_what_does_not_fuse_cuts(machine: Machine, cut: dict[str, Any]) -> None:
    found = chains(machine, short(), short(), cut, short("Exp"), short(), short())
    assert sorted(c.kernels for c in found) == [2, 3]


def test_a_wait_cuts(machine: Machine) -> None:
    assert [c.kernels for c in chains(machine, short(), short(), short(start_us=300.0), short("Exp"))] == [2, 2]


def test_a_kernel_that_fuses_only_sometimes_widens_the_band(machine: Machine) -> None:
    (plain,) = chains(machine, *(short() for _ in range(3)))
    (with_add,) = chains(machine, short(), short("Add"), short())
    assert with_add.saving.value == pytest.approx(plain.saving.value)
    assert with_add.saving.low == 0.0 < (plain.saving.low or 0)


def test_chains_of_all_layers_are_one_line(machine: Machine) -> None:
    layer = [matmul(8, 4096, 4096, 24.0), collective(9.0), short(), short("Exp"), short("Sub"), collective(9.0)]
    found = chains(machine, *(k for _ in range(6) for k in layer))
    (chain,) = [c for c in found if c.kernels == 3]
    assert chain.calls == 6 and len(chain.rows) == 6
    assert chain.step_share == pytest.approx(6 * chain.saving.value / (6 * 48.6 + 199.1), rel=0.01)


def test_long_kernels_are_not_worth_a_scope(machine: Machine) -> None:
    (chain,) = chains(machine, matmul(8, 8192, 8192, 92.0), matmul(8, 8192, 4096, 46.0))
    assert not chain.worth
