"""Windows by the decision table, what fits into them, and copies that share one engine and one L2."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.analysis.analyse import AnalysisOptions, analyse
from pipeline.analysis.bandwidth import Demand, Leftover
from pipeline.analysis.budget import Copy, choose_sizes, share_out
from pipeline.analysis.results import Candidate, PhaseAnalysis
from pipeline.simulator.machine import Machine, load_machine
from tests.pipeline.analysis.frames import MIB, collective, in_order, matmul, profile, vector

CMO = 0.9e6  # bytes/us, nominal
TASK = 1.5  # us, nominal
MACHINE = load_machine("atlas_a3")


@pytest.fixture(scope="module")
def machine() -> Machine:
    return MACHINE


def o_proj(**more: Any) -> dict[str, Any]:
    return matmul(8, 4096, 2048, 13.0, name="o_proj", **more)  # 16 MiB


def gate_up(**more: Any) -> dict[str, Any]:
    return matmul(8, 2048, 8192, 24.0, name="gate_up", **more)  # 32 MiB


def down(**more: Any) -> dict[str, Any]:
    return matmul(8, 4096, 2048, 13.0, name="down", **more)  # 16 MiB


def norm(us: float = 30.0, **more: Any) -> dict[str, Any]:
    return vector("AddRmsNorm", 8 * 4096, us, name="norm", **more)


def analysed(machine: Machine, *kernels: dict[str, Any], coefficient: str = "0.5") -> PhaseAnalysis:
    result = analyse(profile(in_order(kernels)), machine, AnalysisOptions(Decimal(coefficient)))
    (phase,) = result.phases
    assert phase.name == "decode"
    return phase


def found(phase: PhaseAnalysis, name: str) -> Candidate:
    return next(c for c in phase.candidates if c.target.name == name)


def why_not(phase: PhaseAnalysis, name: str) -> str:
    return next(c.code for c in phase.refused if c.target.name == name)


def test_3a_the_output_of_a_large_matmul_releases_the_copy(machine: Machine) -> None:
    gate = found(analysed(machine, o_proj(), norm(), gate_up()), "gate_up")
    assert (gate.dependency.name, gate.rule, gate.priority) == ("o_proj", "3a", "high")
    assert gate.window_us == pytest.approx(30.2) and gate.busy_us == pytest.approx(30.0)
    assert gate.fits.value == pytest.approx((30.2 - TASK) * CMO, rel=1e-6)
    assert gate.weight_bytes == 32 * MIB and gate.max_size == 16 * MIB and gate.limited_by == "coefficient"
    assert gate.pairs == ((2, 0),)


def test_the_band_is_that_of_the_copy_engine(machine: Machine) -> None:
    gate = found(analysed(machine, o_proj(), norm(), gate_up()), "gate_up")
    assert gate.fits.low == pytest.approx((30.2 - 4.0) * 0.4e6) and gate.fits.high == pytest.approx(
        (30.2 - 0.5) * 1.4e6
    )
    assert gate.fits.provenance == gate.saving.provenance == "modelled"


def test_what_does_not_fit_is_cut_to_the_window(machine: Machine) -> None:
    gate = found(analysed(machine, o_proj(), norm(12.0), gate_up()), "gate_up")
    assert gate.limited_by == "window" and gate.max_size % (1 << 16) == 0
    assert 0 <= gate.fits.value - gate.max_size < 1 << 16


def test_the_nearest_kernel_after_which_it_fits_too_is_told(machine: Machine) -> None:
    gate = found(analysed(machine, o_proj(), norm(20.0), norm(25.0), gate_up()), "gate_up")
    assert (gate.dependency.name, gate.nearest.row) == ("o_proj", 1)


def test_too_little_behind_a_matmul_moves_the_dependency_before_it(machine: Machine) -> None:
    """gate_up, SwiGLU, down: the copy for down starts with the input of gate_up, which is prefetched itself."""
    phase = analysed(machine, o_proj(), norm(), gate_up(), vector("SwiGlu", 8 * 8192, 3.0), down())
    assert found(phase, "gate_up").dependency.name == "o_proj"
    second = found(phase, "down")
    assert (second.dependency.name, second.rule, second.passed) == ("norm", "3b", ("MatMulV3",))
    assert second.fits.value > (3.2 - TASK) * CMO  # what half a prefetched gate_up leaves comes on top


def test_back_to_back_matmuls_have_no_window(machine: Machine) -> None:
    phase = analysed(machine, o_proj(), gate_up())
    assert not phase.candidates
    assert why_not(phase, "gate_up") == "bandwidth" and why_not(phase, "o_proj") == "first"


def test_short_kernels_before_it_are_too_short(machine: Machine) -> None:
    phase = analysed(machine, norm(1.0), norm(1.0), gate_up())
    assert why_not(phase, "gate_up") == "too_short"
    assert "too short" in phase.refused[0].reason["en"] and "太短" in phase.refused[0].reason["zh"]


def test_communication_is_no_dependency_and_its_time_is_told(machine: Machine) -> None:
    gate = found(analysed(machine, o_proj(), collective(20.0), norm(5.0), gate_up()), "gate_up")
    assert gate.dependency.name == "o_proj" and gate.link_us == pytest.approx(20.0)
    assert gate.fits.value == pytest.approx((25.3 - TASK) * CMO, rel=1e-6)
    assert gate.fits.low < 0.4e6 * 5.5  # none of the collective's time


def test_only_communication_before_it(machine: Machine) -> None:
    phase = analysed(machine, collective(40.0), gate_up())
    assert why_not(phase, "gate_up") == "link_only" and "communication" in phase.refused[0].reason["en"]


def test_kernels_of_another_stream_leave_less(machine: Machine) -> None:
    alone = found(analysed(machine, o_proj(), norm(), gate_up()), "gate_up")
    beside = matmul(8, 4096, 5120, 30.0, stream="7", start_us=13.1, name="other")  # 40 MiB in 30 us: 1.4 TB/s
    shared = found(analysed(machine, o_proj(), norm(), gate_up(), beside), "gate_up")
    assert shared.window_us == alone.window_us
    assert shared.fits.value < 0.15 * alone.fits.value


def test_the_critical_path_crosses_streams_where_a_stream_waited(machine: Machine) -> None:
    router = matmul(8, 4096, 2048, 13.0, stream="7", start_us=43.5, name="router")
    phase = analysed(machine, o_proj(), norm(), router)
    assert found(phase, "router").dependency.name == "o_proj"


def test_what_fills_l2_in_between_leaves_no_room(machine: Machine) -> None:
    large = vector("AddRmsNorm", 100_000_000, 300.0, name="large")  # 400 MB through 115 MiB of usable L2
    phase = analysed(machine, o_proj(), large, gate_up())
    assert why_not(phase, "gate_up") == "l2"


def test_a_large_transpose_takes_bandwidth_and_a_small_one_does_not(machine: Machine) -> None:
    large = vector("Transpose", 10 << 20, 28.0, name="move", aiv_us=27.0, aiv_mte2_ratio=0.9)
    gate = found(analysed(machine, o_proj(), large, norm(), gate_up()), "gate_up")
    assert (gate.dependency.name, gate.rule) == ("move", "3a")
    small = vector("Transpose", 1 << 10, 2.0, name="move")
    assert found(analysed(machine, o_proj(), small, norm(), gate_up()), "gate_up").dependency.name == "o_proj"


def test_a_small_matmul_belongs_to_the_window(machine: Machine) -> None:
    """router.classifier: its weight is small, its output may be a dependency, and it leaves the bandwidth."""
    classifier = matmul(8, 2048, 256, 2.5, name="classifier")
    gate = found(analysed(machine, o_proj(), norm(15.0), classifier, norm(15.0), gate_up()), "gate_up")
    assert gate.dependency.name == "o_proj"


def test_what_is_read_from_l2_already_needs_no_prefetch(machine: Machine) -> None:
    fast = matmul(8, 2048, 8192, 12.0, name="gate_up")  # 32 MiB at 2.8 TB/s
    phase = analysed(machine, o_proj(), norm(), fast)
    assert why_not(phase, "gate_up") == "resident"


def test_nothing_but_memory_bound_kernels_leaves_no_window(machine: Machine) -> None:
    """Each leaves a sixth of the bandwidth: that is no window, do not insert a prefetch for the sake of a change."""
    phase = analysed(machine, *(matmul(8, 4096, 4096, 25.0) for _ in range(12)))
    assert not phase.candidates and {r.code for r in phase.refused} == {"bandwidth"}


def test_a_router_too_small_for_a_prefetch_says_so(machine: Machine) -> None:
    router = matmul(8, 2048, 256, 2.5, name="router")  # 1 MiB
    assert why_not(analysed(machine, o_proj(), norm(), router), "router") == "small"
    phase = analysed(machine, o_proj(), norm(), gate_up(), coefficient="0.001")
    assert {r.code for r in phase.refused} == {"small"} and "32.77 KiB" in phase.refused[0].reason["en"]


def test_of_a_weight_larger_than_l2_a_part_is_a_candidate(machine: Machine) -> None:
    stack = matmul(
        64, 7168, 4096, 660.0, op_type="GroupedMatmul", name="experts", input_shapes="64,7168;16,7168,4096"
    )  # 896 MiB
    experts = found(analysed(machine, o_proj(), norm(80.0), stack), "experts")
    assert experts.limited_by == "window" and 0 < experts.fits.value - experts.max_size < 1 << 16


def test_keys_that_grow_from_step_to_step_are_no_weight(machine: Machine) -> None:
    """Attention of batched MatMuls: the second operand is an activation, which is not there before."""
    kernels: list[dict[str, Any]] = []
    at = 0.0
    for number in range(4):
        n = 900 + number
        scores = matmul(8, 1, 1, 45.0, name="scores", op_type="BatchMatMulV2")
        scores |= {"input_shapes": f"8,32,1,128;8,32,128,{n}", "output_shapes": f"8,32,1,{n}"}
        one = in_order([o_proj(), norm(), scores, norm(), gate_up()], start=at)
        kernels += [k | {"step": number} for k in one]
        at = one[-1]["start_us"] + 60.0
    (phase,) = analyse(profile(kernels), machine).phases
    assert phase.steps == 3 and not phase.different  # the steps are alike although a shape grows
    assert [c.target.name for c in phase.candidates] == ["gate_up"]
    assert "scores" not in [r.target.name for r in phase.refused]


def test_rows_of_experts_that_differ_from_layer_to_layer_hide_no_layer(machine: Machine) -> None:
    layers = []
    for rows in (40, 71, 55, 90, 62):
        stack = matmul(rows, 2048, 4096, 95.0, op_type="GroupedMatmul", name="experts")
        layers += [o_proj(), norm(20.0), stack | {"input_shapes": f"{rows},2048;8,2048,4096"}, norm(12.0)]
    phase = analysed(machine, vector("GatherV2", 4096, 2.0), *layers, vector("ArgMax", 4096, 9.0))
    assert phase.layers == (("2", 5, 4),) and found(phase, "experts").calls == 5


def test_a_device_too_slow_for_what_was_measured_is_told() -> None:
    targets = [o_proj(), norm(), gate_up(), norm(), down(), norm(), gate_up()]
    one = [vector("GatherV2", 4096, 2.0), *targets, vector("ArgMax", 4096, 9.0)]
    fast = [k | {"duration_us": k["duration_us"] / 2} for k in one]
    a2, slow = load_machine("atlas_a2"), profile(in_order(one))
    assert "above-peak" not in [p.code for p in analyse(slow, a2).problems]
    (told,) = [p for p in analyse(profile(in_order(fast)), a2).problems if p.code == "above-peak"]
    assert "4 of 4" in told.message and told.key == "hardware"


def test_two_targets_of_one_window_share_it(machine: Machine) -> None:
    second = matmul(8, 2048, 8192, 24.0, stream="7", start_us=33.4, name="second")
    phase = analysed(machine, o_proj(), norm(20.0), gate_up(), second, coefficient="1.0")
    both = [c for c in phase.candidates if c.target.name in ("gate_up", "second")]
    assert sum(c.max_size for c in both) <= (20.4 - TASK) * CMO
    assert any(c.limited_by == "other_copies" for c in both) or "shared" in [r.code for r in phase.refused]


def test_nothing_memory_bound_gives_no_candidate(machine: Machine) -> None:
    phase = analysed(machine, norm(), matmul(512, 8192, 8192, 250.0, mac_ratio=0.9, mte2_ratio=0.5), norm())
    assert not phase.candidates and not phase.refused


def flat(machine: Machine, length: float) -> Leftover:
    """Bandwidth that no kernel draws from, over some time."""
    none = np.zeros(1)
    return Leftover(Demand(none, np.array([length]), none, none, none, none), machine)


def test_the_engine_works_one_copy_after_the_other(machine: Machine) -> None:
    left = flat(machine, 1000.0)
    copies = [Copy(0, 0.0, 100.0, 50 * CMO), Copy(1, 0.0, 110.0, 50 * CMO), Copy(2, 20.0, 60.0, 30 * CMO)]
    granted, held = share_out(copies, left, 1e9, 1.0)
    assert granted[0] == [50 * CMO] and granted[1] == [50 * CMO]  # 0: 1.5 to 51.5, 1: 53 to 103
    assert granted[2] == [0.0]  # released third: its target has started by then
    assert held == pytest.approx(100 * CMO)


def test_l2_is_shared_too(machine: Machine) -> None:
    copies = [Copy(0, 0.0, 500.0, 60 * CMO), Copy(1, 0.0, 500.0, 60 * CMO)]
    granted, held = share_out(copies, flat(machine, 1000.0), 100 * CMO, 1.0)
    assert granted == {0: [60 * CMO], 1: [pytest.approx(40 * CMO)]}
    assert held == pytest.approx(100 * CMO)


windows = st.lists(st.tuples(st.floats(0, 900), st.floats(5, 80), st.floats(1, 60)), min_size=1, max_size=8)


@settings(deadline=None)
@given(windows, st.floats(20, 200))
def test_copies_never_bring_more_than_the_engine_can_nor_hold_more_than_l2(
    asked: list[tuple[float, float, float]], usable: float
) -> None:
    left = flat(MACHINE, 1000.0)
    copies = [Copy(n, begin, begin + length, size * CMO) for n, (begin, length, size) in enumerate(asked)]
    granted, held = share_out(copies, left, usable * CMO, 1.0)
    assert held <= usable * CMO * 1.0001
    for copy in copies:
        assert granted[copy.group][0] <= min(copy.size, (copy.deadline - copy.release) * CMO) * 1.0001
    first, last = min(c.release for c in copies), max(c.deadline for c in copies)
    assert sum(sum(g) for g in granted.values()) <= (last - first) * CMO * 1.0001


@settings(deadline=None)
@given(windows)
def test_a_target_added_later_takes_nothing_from_those_before(asked: list[tuple[float, float, float]]) -> None:
    left = flat(MACHINE, 1000.0)
    groups = {n: [Copy(n, b, b + length, size * CMO)] for n, (b, length, size) in enumerate(asked)}
    chosen, _ = choose_sizes(groups, list(groups), left, 1e12, CMO)
    alone, _ = choose_sizes({0: groups[0]}, [0], left, 1e12, CMO)
    assert chosen[0] == alone[0]
    final = [Copy(n, c[0].release, c[0].deadline, chosen[n]) for n, c in groups.items() if chosen[n]]
    brought, _ = share_out(final, left, 1e12, CMO)
    assert all(sum(brought[c.group]) >= 0.98 * c.size for c in final)


def test_noise_that_adds_up_along_a_step_changes_neither_places_nor_dependencies(machine: Machine) -> None:
    """Starts far into a step differ by more than any window from step to step; each window is of one real step."""
    rng = np.random.default_rng(3)
    layer = [norm(3.0), o_proj(), collective(20.0), norm(5.0), gate_up(), vector("SwiGlu", 8 * 8192, 3.0), down()]
    at, kernels = 0.0, []
    for number in range(8):
        noisy = [
            k | {"duration_us": k["duration_us"] * float(rng.uniform(0.9, 1.4)), "step": number}
            for _ in range(30)
            for k in layer
        ]
        one = in_order([vector("GatherV2", 4096, 2.0, step=number), *noisy])
        kernels += [k | {"start_us": k["start_us"] + at} for k in one]
        at = kernels[-1]["start_us"] + kernels[-1]["duration_us"] + 15.0
    (phase,) = analyse(profile(kernels), machine).phases
    gate, last = found(phase, "gate_up"), found(phase, "down")
    assert (gate.dependency.name, last.dependency.position) == ("o_proj", gate.target.position - 1)
    assert gate.calls == 30 and len(gate.pairs) >= 29
    assert gate.target_us == pytest.approx(24.0 * 1.15, rel=0.05)


def test_the_wait_time_of_the_file_decides_nothing(machine: Machine) -> None:
    """It counts over all streams: waits are found again per stream, from starts and ends."""
    router = matmul(8, 4096, 2048, 13.0, stream="7", start_us=43.5, name="router")
    kernels = [o_proj(), norm(), router]
    told = [analysed(machine, *(k | {"wait_us": wait} for k in kernels)) for wait in (None, 0.0, 1e4)]
    assert [[c.to_json() for c in phase.candidates] for phase in told[1:]] == [
        [c.to_json() for c in told[0].candidates]
    ] * 2
    assert found(told[0], "router").dependency.name == "o_proj"
