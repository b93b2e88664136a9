"""Each mechanism by itself, on steps small enough to check by hand (HBM 1 MB/us, copies 0.5 MB/us)."""

from dataclasses import replace

import pytest

from models.workload import Kernel, WeightRead
from pipeline.simulator.copies import Copy
from pipeline.simulator.simulate import SimulationError, simulate
from tests.pipeline.simulator.cases import MIB, idle, matmul, parameters, workload

MB = 1e6


def test_issue_delays_the_stream_that_launches() -> None:
    """Two copies behind kernel 0: the next kernel of its stream waits for both launches, the other stream does not."""
    step = workload(idle(0, 5.0), idle(1, 1.0), idle(2, 7.0, "side"), idle(3, 1.0, "side"))
    copies = [Copy("elsewhere", 0, 0), Copy("elsewhere", 0, 0)]
    result = simulate(step, copies, parameters(issue=2.0))
    assert result.starts == (0.0, 9.0, 0.0, 7.0)
    assert simulate(step, copies, parameters()).starts[1] == 5.0


def test_copies_of_the_start_of_the_step_are_launched_by_its_first_stream() -> None:
    step = workload(idle(0, 5.0), idle(1, 1.0, "side"))
    assert simulate(step, [Copy("elsewhere", -1, 0)], parameters(issue=2.0)).starts == (2.0, 0.0)


def test_a_dependency_across_streams_adds_the_gap() -> None:
    step = workload(idle(0, 5.0), idle(1, 1.0, "side", inputs=[0]))
    assert simulate(step, [], parameters(gap=0.5)).starts[1] == 5.5


def test_the_chain_is_sequential_and_pays_the_task_even_for_resident_bytes() -> None:
    """A duplicate prefetch moves nothing; its task delays the copy behind it."""
    step = workload(idle(0, 1.0), idle(1, 60.0), matmul(2, "a", 4 * MB), matmul(3, "b", 4 * MB))
    copies = [Copy("a", 0, 4 * MB), Copy("a", 0, 4 * MB), Copy("b", 0, 4 * MB)]
    first, again, other = simulate(step, copies, parameters(cmo_task=2.0)).copies
    assert (first.start, first.end, first.moved) == (3.0, 11.0, 4 * MB)
    assert (again.start, again.end, again.moved, again.resident) == (13.0, 13.0, 0.0, 4 * MB)
    assert (other.start, other.end) == (15.0, 23.0)
    assert first.useful == 4 * MB and again.useful == 0.0


def test_parts_of_one_weight_add_up() -> None:
    """Disjoint ranges: each moves its own bytes. An overlap moves only what is not there yet."""
    step = workload(idle(0, 60.0), matmul(1, "a", 12 * MB))
    halves = [Copy("a", -1, 4 * MB), Copy("a", -1, 4 * MB, offset=4 * MB)]
    result = simulate(step, halves, parameters())
    assert [copy.moved for copy in result.copies] == [4 * MB, 4 * MB]
    assert result.hits[1] == 8 * MB and result.time == pytest.approx(64.0)
    overlap = [Copy("a", -1, 4 * MB), Copy("a", -1, 6 * MB)]
    result = simulate(step, overlap, parameters())
    assert [copy.moved for copy in result.copies] == pytest.approx([4 * MB, 2 * MB])
    assert result.hits[1] == pytest.approx(6 * MB)


def test_a_copy_is_cut_at_the_end_of_its_weight() -> None:
    step = workload(idle(0, 60.0), matmul(1, "a", 8 * MB))
    assert simulate(step, [Copy("a", -1, 99 * MB)], parameters()).copies[0].moved == 8 * MB


def test_bytes_in_l2_before_the_target_starts_are_counted_once() -> None:
    """A copy that is half done when its target starts: the bytes there are hits, only the rest is late."""
    step = workload(idle(0, 4.0), matmul(1, "a", 8 * MB))
    result = simulate(step, [Copy("a", -1, 4 * MB)], parameters(late_bytes=0))
    assert result.hits[1] == 2 * MB
    assert result.kernel_hbm_bytes[1] == pytest.approx(6 * MB)
    assert result.copies[0].useful == 2 * MB and result.copies[0].unused == pytest.approx(2 * MB)


@pytest.mark.parametrize(
    ("late", "copied_until", "moved"),
    [(0, 20.0, 10 * MB), (1, 20.0, 10 * MB), (2, 8.0, 4 * MB)],
)
def test_what_a_copy_does_after_its_target_has_read_the_weight(late: int, copied_until: float, moved: float) -> None:
    """It keeps drawing (low, nominal), or finds its bytes resident and stops (high)."""
    step = workload(matmul(0, "a", 10 * MB), idle(1, 40.0))
    result = simulate(step, [Copy("a", -1, 10 * MB)], parameters(late_bytes=late, cmo_bandwidth=0.5e6))
    assert result.copies[0].moved == pytest.approx(moved if late < 2 else 5 * MB)
    assert result.copies[0].end == pytest.approx(copied_until if late < 2 else 10.0)
    assert result.ends[0] == pytest.approx({0: 20.0, 2: 10.0}.get(late, result.ends[0]))
    assert 10.0 <= result.ends[0] <= 20.0


def test_a_copy_behind_its_target_moves_nothing() -> None:
    step = workload(matmul(0, "a", 8 * MB), idle(1, 20.0))
    result = simulate(step, [Copy("a", 0, 8 * MB)], parameters())
    assert result.copies[0].moved == 0.0 and result.copies[0].resident == 8 * MB


def test_the_last_missing_byte_of_a_compute_bound_target_may_come_by_copy() -> None:
    """Its missing density reaches zero, where the logarithm of the late rule ends."""
    step = workload(matmul(0, "a", 8 * MB, flops=200 * MB))
    result = simulate(step, [Copy("a", -1, 8 * MB)], parameters(cmo_bandwidth=5e6))
    assert result.time == pytest.approx(200.0)
    assert result.rules["late_emptied"] == 1


def test_zero_bytes_everywhere() -> None:
    """No flow, timers only."""
    kernels = [matmul(0, "a", 0), matmul(1, "b", 8 * MB, share=0.0), idle(2, 0.0)]
    result = simulate(workload(*kernels), [Copy("a", -1, 0), Copy("b", -1, 8 * MB)], parameters(fixed=1.0))
    assert result.ends == (1.0, 2.0, 2.0)
    assert simulate(workload(), [], parameters()).time == 0.0


def test_l2_keeps_what_was_filled_last() -> None:
    """8 MB copied, 10 MB streamed through a 16 MiB L2 between copy and use: the first bytes are gone."""
    l2 = 16 * MIB
    step = workload(idle(0, 16.0), matmul(1, "big", 10 * MB), matmul(2, "a", 8 * MB))
    kept = l2 - 10 * MB
    plain = parameters(l2_mib=16, self_eviction=2)
    result = simulate(step, [Copy("a", -1, 8 * MB)], plain)
    assert result.hits[2] == pytest.approx(kept)
    assert result.copies[0].pushed_out == pytest.approx(8 * MB - kept)
    assert result.rules["pushed_out"] == 1
    assert simulate(step, [Copy("a", -1, 8 * MB)], parameters(l2_mib=64)).hits[2] == 8 * MB


@pytest.mark.parametrize(("choice", "keeps"), [(0, 0.0), (1, 1.0), (2, 2.0)])
def test_a_targets_own_misses_push_out_what_it_has_not_read(choice: int, keeps: float) -> None:
    """Pushed out before the start: x. Strict LRU keeps nothing, the middle case loses x again, the best no more."""
    l2 = 16 * MIB
    step = workload(idle(0, 16.0), matmul(1, "big", 10 * MB), matmul(2, "a", 8 * MB))
    lost = 8 * MB - (l2 - 10 * MB)
    expected = {0.0: 0.0, 1.0: 8 * MB - 2 * lost, 2.0: 8 * MB - lost}[keeps]
    result = simulate(step, [Copy("a", -1, 8 * MB)], parameters(l2_mib=16, self_eviction=choice))
    assert result.hits[2] == pytest.approx(expected)


def test_a_copy_larger_than_l2_evicts_its_own_beginning() -> None:
    step = workload(idle(0, 80.0), matmul(1, "a", 32 * MIB))
    for choice, kept in ((0, 0), (1, 8 * MIB), (2, 16 * MIB + 4 * MIB)):
        p = parameters(l2_mib=20, self_eviction=choice)
        assert simulate(step, [Copy("a", -1, 32 * MIB)], p).hits[1] == pytest.approx(kept)


def test_cores_with_cold_slices_limit_a_partly_resident_weight() -> None:
    """Half resident, 10 cores at 0.15 MB/us: all can draw 1.5 (HBM: 1), the 5 cold ones only 0.75."""
    step = workload(idle(0, 60.0), matmul(1, "a", 12 * MB, cores=10))
    warm = parameters(core_bandwidth=0.15e6)
    cold = warm.with_values(cold_slices=0)
    copies = [Copy("a", -1, 6 * MB)]
    assert simulate(step, copies, warm).time == pytest.approx(66.0)
    assert simulate(step, copies, cold).time == pytest.approx(60 + 6 / 0.75)
    assert simulate(step, [], cold).time == simulate(step, [], warm).time == pytest.approx(72.0)
    assert simulate(step, [Copy("a", -1, 12 * MB)], cold).time == pytest.approx(60.0)


def test_cold_slices_can_nullify_a_coefficient_of_one_half() -> None:
    """When the cores' own bandwidth is what limits the kernel, half a weight saves nothing."""
    step = workload(idle(0, 60.0), matmul(1, "a", 12 * MB, cores=10))
    p = parameters(core_bandwidth=0.05e6, cold_slices=0)
    assert simulate(step, [Copy("a", -1, 6 * MB)], p).time == pytest.approx(simulate(step, [], p).time)


def test_a_grouped_matmul_has_no_cold_slices() -> None:
    """A prefix of an expert stack is whole experts, each read by all cores."""
    p = parameters(core_bandwidth=0.05e6, cold_slices=0)
    step = workload(idle(0, 60.0), matmul(1, "a", 12 * MB, cores=10, op="GroupedMatmul"))
    assert simulate(step, [Copy("a", -1, 6 * MB)], p).time == pytest.approx(60 + 6 / 0.5)


def test_hits_before_misses_take_their_own_time() -> None:
    step = workload(idle(0, 60.0), matmul(1, "a", 12 * MB))
    p = parameters(l2_bandwidth=4 * MB)
    copies = [Copy("a", -1, 6 * MB)]
    assert simulate(step, copies, p).time == pytest.approx(66.0)
    assert simulate(step, copies, p.with_values(serial_hits=0)).time == pytest.approx(67.5)


def test_only_active_experts_of_a_prefix_help() -> None:
    """Share 0.5, band 0.25 to 1: half of a 4 MB prefix is useful, a quarter if its experts are cold, all if hot."""
    step = workload(idle(0, 60.0), matmul(1, "a", 16 * MB, share=(0.25, 0.5, 1.0), op="GroupedMatmul"))
    copies = [Copy("a", -1, 4 * MB)]
    for first, useful in ((-1, 1 * MB), (0, 2 * MB), (1, 4 * MB)):
        result = simulate(step, copies, parameters(first_experts=first))
        assert result.hits[1] == pytest.approx(useful)
        assert result.copies[0].useful == pytest.approx(useful)
        assert result.copies[0].unused == pytest.approx(4 * MB - useful)
        assert result.time == pytest.approx(60 + 8 - useful / MB)  # how much is read does not depend on which are hot
    assert simulate(step, [], parameters(routing=-1)).time == pytest.approx(64.0)
    assert simulate(step, [], parameters(routing=1)).time == pytest.approx(76.0)
    whole = simulate(step, [Copy("a", -1, 16 * MB)], parameters(first_experts=-1))
    assert whole.hits[1] == pytest.approx(8 * MB)  # a whole stack holds every active expert


def test_a_weight_that_two_kernels_read_comes_from_hbm_once() -> None:
    step = workload(matmul(0, "tied", 8 * MB), idle(1, 5.0), matmul(2, "tied", 8 * MB))
    result = simulate(step, [], parameters())
    assert result.kernel_hbm_bytes == (8 * MB, 0.0, 0.0)
    assert result.hits[2] == 8 * MB and result.rules["reread"] == 1
    assert simulate(step, [], parameters(l2_mib=4)).kernel_hbm_bytes[2] == pytest.approx(8 * MB - 4 * MIB)


def test_a_copy_helps_both_kernels_that_read_its_weight_at_the_same_time() -> None:
    a = matmul(0, "tied", 8 * MB, "one", cores=12)
    b = matmul(1, "tied", 8 * MB, "two", cores=12)
    result = simulate(workload(a, b), [Copy("tied", -1, 8 * MB)], parameters(late_bytes=2))
    assert result.ends[:2] == pytest.approx((12.0, 12.0))  # three flows share HBM, each kernel gains from two of them
    assert result.hits == pytest.approx((4 * MB, 4 * MB))


def test_a_warm_cache_holds_what_the_step_before_read_last() -> None:
    step = workload(matmul(0, "a", 4 * MB), matmul(1, "b", 12 * MB))
    p = parameters(l2_mib=14)
    assert simulate(step, [], p).time == pytest.approx(16.0)
    warm = simulate(step, [], p, steps=2)
    assert warm.hits[0] == pytest.approx(14 * MIB - 12 * MB)
    everything = simulate(step, [], parameters(), steps=2)
    assert everything.time == pytest.approx(0.0, abs=1e-6) and sum(everything.hits) == 16 * MB


def test_a_warm_copy_of_resident_bytes_moves_nothing() -> None:
    step = workload(idle(0, 60.0), matmul(1, "a", 4 * MB), idle(2, 10.0))
    result = simulate(step, [Copy("a", -1, 4 * MB)], parameters(), steps=2)
    assert result.copies[0].moved == 0.0 and result.hits[1] == 4 * MB


def test_core_limits_slow_memory_and_compute() -> None:
    p = parameters(core_bandwidth=0.1e6)
    assert simulate(workload(matmul(0, "a", 8 * MB, cores=4)), [], p).time == pytest.approx(20.0)
    assert simulate(workload(matmul(0, "a", 0, cores=4, flops=4 * MB)), [], p).time == pytest.approx(24.0)
    assert simulate(workload(matmul(0, "a", 8 * MB, cores=99)), [], p).time == pytest.approx(8.0)  # the die has 24


def test_a_compute_bound_kernel_leaves_bandwidth_to_others() -> None:
    """It needs 0.1 MB/us, so the other stream gets 0.9."""
    step = workload(matmul(0, "a", 2 * MB, flops=10 * MB, cores=12), matmul(1, "b", 9 * MB, "side", cores=12))
    result = simulate(step, [], parameters())
    assert result.ends == pytest.approx((20.0, 10.0))


def test_kernels_of_two_streams_wait_for_cores_that_the_other_runs_on() -> None:
    """Without core limits a MatMul takes all AIC cores: the other stream's waits, its vector kernel does not."""
    a, b = (matmul(i, "ab"[i], 8 * MB, stream) for i, stream in enumerate(("main", "side")))
    vector = Kernel(2, "Cast", "", "vector", "third", other_bytes=1 * MB)
    apart = simulate(workload(a, b, vector), [], parameters())
    assert apart.starts == pytest.approx((0.0, 9.0, 0.0))  # main and the vector kernel share HBM
    assert apart.ends == pytest.approx((9.0, 17.0, 2.0))
    assert apart.rules["cores_busy"] == 1
    limited = simulate(workload(replace(a, cores=16), replace(b, cores=8), vector), [], parameters())
    assert limited.starts == (0.0, 0.0, 0.0) and limited.rules["cores_busy"] == 0
    assert limited.time == pytest.approx(17.0)


def test_cores_go_to_the_kernel_that_has_waited_longest() -> None:
    """Side waits since 1 for main's first kernel; main's second one is ready later, so it comes behind."""
    step = workload(
        matmul(0, "a", 5 * MB), matmul(1, "b", 5 * MB), idle(2, 1.0, "side"), matmul(3, "c", 5 * MB, "side")
    )
    assert simulate(step, [], parameters()).starts == pytest.approx((0.0, 10.0, 0.0, 5.0))


def test_kernels_of_a_given_time_hold_no_cores() -> None:
    """Durations from a profile were measured side by side: they are not put one behind the other."""
    kernels = [Kernel(i, "MatMul", "", "cube", stream, fixed_us=9.0) for i, stream in enumerate("ab")]
    assert simulate(workload(*kernels), [], parameters()).time == 9.0


def test_a_copy_slows_a_bystander_that_is_bound_by_memory() -> None:
    step = workload(matmul(0, "big", 10 * MB), matmul(1, "a", 5 * MB))
    result = simulate(step, [Copy("a", -1, 5 * MB)], parameters())
    assert result.ends == pytest.approx((15.0, 15.0))  # what the target gains, the bystander loses


def test_idle_kernels_take_their_time_on_any_machine() -> None:
    step = workload(Kernel(0, "Idle", "", "idle", fixed_us=33.0, other_bytes=1e9, flops=1e12))
    for p in (parameters(), parameters(fixed=9.0), replace(parameters(), hbm_peak=1.0)):
        result = simulate(step, [], p)
        assert result.time == 33.0 and result.hbm_bytes == 0.0


def test_kernels_that_wait_for_each_other_are_named() -> None:
    step = workload(idle(0, 1.0), idle(1, 1.0, "side", inputs=[2]), idle(2, 1.0, "main", inputs=[1]))
    with pytest.raises(SimulationError, match=r"1 \(Idle of wait1\), 2 \(Idle of wait2\)"):
        simulate(step, [], parameters())


def test_a_copy_that_waits_for_no_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="the copy of a waits for kernel 7; the workload has 0 to 0"):
        simulate(workload(idle(0, 1.0)), [Copy("a", 7, 1)], parameters())


def test_a_weight_without_a_band_keeps_its_share() -> None:
    read = WeightRead("a", 8_000_000, 0.5)
    step = workload(Kernel(0, "GroupedMatmul", "", "cube", weights=(read,)))
    for level in (-1, 0, 1):
        assert simulate(step, [], parameters(routing=level)).time == pytest.approx(4.0)
