"""Steps that can be computed by hand, to 1e-9 us."""

from dataclasses import replace
from itertools import product
from math import exp, log

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from models.workload import Kernel
from pipeline.simulator.copies import Copy
from pipeline.simulator.simulate import simulate
from tests.pipeline.simulator.cases import MIB, idle, matmul, parameters, workload

EXACT = {"abs": 1e-9, "rel": 1e-12}
WEIGHT = 20 * MIB


def by_hand(window: float, size: float, late: int, hbm: float, cmo: float, gap: float, task: float) -> float:
    """A kernel of 1 us releases a copy; after a window the MatMul reads the weight. When does it end?"""
    start = 1 + gap + window + gap
    first = 1 + task
    brought = min(size, max(0.0, start - first) * min(cmo, hbm)) if size else 0.0
    missing, to_copy, t = WEIGHT - brought, size - brought, start
    if size and first > start:  # alone until the copy's first byte
        alone = min(first - start, missing / hbm)
        missing, t = missing - hbm * alone, t + alone
        if late == 2:
            to_copy *= missing / WEIGHT
    copy = min(cmo, hbm / 2)
    read = hbm - copy
    if to_copy > 0 and missing > 0:
        if late == 0:
            both = min(to_copy / copy, missing / read)
            missing -= read * both
        elif late == 1:
            whole = WEIGHT - brought
            progress = 1 - missing / whole
            both = min(to_copy / copy, whole / copy * (1 - exp(-(1 - progress) * copy / read)))
            progress += read / copy * log(whole / (whole - copy * both))
            missing = (whole - copy * both) * (1 - progress)
        else:
            rest = missing * (1 - to_copy / missing) ** (hbm / copy)
            both = (missing - rest) / hbm
            missing = rest
        t += both
    return t + missing / hbm


CASES = list(product((0.0, 5.0, 20.0, 60.0), (0, 4 * MIB, 10 * MIB, 20 * MIB), (0, 1, 2), (0.3e6, 2e6)))


@pytest.mark.parametrize(("window", "size", "late", "cmo"), CASES)
def test_two_kernels_and_one_copy(window: float, size: float, late: int, cmo: float) -> None:
    step = workload(idle(0, 1.0), idle(1, window), matmul(2, "w", WEIGHT))
    p = parameters(gap=1.0, cmo_task=2.0, cmo_bandwidth=cmo, late_bytes=late)
    copies = [Copy("w", 0, size)] if size else []
    expected = by_hand(window, size, late, 1e6, cmo, 1.0, 2.0)
    assert simulate(step, copies, p).time == pytest.approx(expected, **EXACT)


def test_a_kernel_alone_takes_fixed_time_plus_the_longest_of_compute_hbm_and_l2() -> None:
    for flops, hbm_cores, l2 in product((0.0, 1e6, 9e7), (1e12, 2e4), (1e18, 3e5)):
        p = parameters(fixed=2.0, core_bandwidth=hbm_cores, l2_bandwidth=l2)
        step = workload(matmul(0, "w", WEIGHT, flops=flops, cores=12, other=1e6))
        size = WEIGHT + 1e6
        expected = 2 + max(flops / (1e6 / 2), size / min(1e6, 12 * hbm_cores), size / (l2 / 2))
        assert simulate(step, [], p).time == pytest.approx(expected, **EXACT)


def test_communication_takes_latency_by_ranks_and_time_on_the_link() -> None:
    step = workload(Kernel(0, "AllGather", "", "communication", comm_bytes=1e6, comm_ranks=8))
    p = parameters(fixed=10.0, rank_latency=0.5, link_bandwidth=2e5)
    assert simulate(step, [], p).time == pytest.approx(10 + 7 * 0.5 + 5, **EXACT)


def test_late_bytes_agree_with_the_differential_equations() -> None:
    """Both forms of the late rule against a numerical integration, up to the end of the copy."""
    read = copy = 0.5e6
    size = 8 * MIB
    whole = float(WEIGHT)

    # Chance 1 - progress: missing density h and progress p.
    chance = solve_ivp(lambda t, y: [-copy, read / y[0]], (0, size / copy), [whole, 0.0], rtol=1e-11, atol=1e-12)
    h, progress = chance.y[:, -1]
    step = workload(matmul(0, "w", WEIGHT))
    p = parameters(cmo_bandwidth=copy, late_bytes=1)
    expected = size / copy + h * (1 - progress) / 1e6
    assert simulate(step, [Copy("w", -1, size)], p).time == pytest.approx(expected, rel=1e-8)

    # All help: missing u, of which v belong to the copy.
    def both(t: float, y: np.ndarray) -> list[float]:
        return [-copy - read, -copy - read * y[1] / y[0]]

    gone = lambda t, y: y[1]  # noqa: E731
    gone.terminal = True  # type: ignore[attr-defined]
    every = solve_ivp(both, (0, 40), [whole, float(size)], events=gone, rtol=1e-11, atol=1e-6)
    result = simulate(step, [Copy("w", -1, size)], parameters(cmo_bandwidth=copy, late_bytes=2))
    assert result.copies[0].end == pytest.approx(every.t_events[0][0], rel=1e-7)
    assert result.time == pytest.approx(whole / 1e6, **EXACT)  # HBM is never idle and no byte is read twice


def test_splitting_an_interval_changes_nothing() -> None:
    """Events of another stream that draws nothing cut the late interval into pieces."""
    for late in (0, 1, 2):
        p = parameters(late_bytes=late)
        alone = simulate(workload(matmul(0, "w", WEIGHT)), [Copy("w", -1, 8 * MIB)], p)
        ticks = [idle(i, 0.7, "other") for i in range(1, 20)]
        cut = simulate(workload(matmul(0, "w", WEIGHT), *ticks), [Copy("w", -1, 8 * MIB)], p)
        assert cut.ends[0] == pytest.approx(alone.ends[0], **EXACT)
        assert cut.copies[0].end == pytest.approx(alone.copies[0].end, **EXACT)


def test_the_exact_rule_lies_between_a_constant_half_and_no_waste() -> None:
    """30 % of the miss in flight: the facts page's 40.8 us kernel ends at 42.8, not at 46.9."""
    hbm, cmo = 1.472e6, 0.9e6
    size = 40.8 * hbm
    p = replace(parameters(cmo_bandwidth=cmo), hbm_peak=hbm)
    step = workload(matmul(0, "w", size))
    time = simulate(step, [Copy("w", -1, 0.3 * size)], p).time
    assert time == pytest.approx(42.8, abs=0.6)
    assert simulate(step, [], p).time == pytest.approx(40.8, abs=1e-3)


def test_max_min_gives_small_demands_what_they_want() -> None:
    """Three streams: 0.1 and 0.2 MB/us by their cores' limit, the third takes the rest of 1 MB/us."""
    p = parameters(core_bandwidth=1e5)
    kernels = [matmul(i, f"w{i}", 1e6, stream=str(i), cores=cores) for i, cores in enumerate((1, 2, 21))]
    result = simulate(workload(*kernels), [], p)
    assert result.ends[2] == pytest.approx(1 / 0.7, **EXACT)
    assert result.ends[1] == pytest.approx(5.0, **EXACT)
    assert result.ends[0] == pytest.approx(10.0, **EXACT)


@pytest.mark.parametrize(("sharing", "big", "small"), [(0, 0.5, 0.5), (1, 2 / 3, 1 / 3), (2, 2 / 3, 1 / 3)])
def test_two_kernels_share_hbm_equally_or_by_their_cores(sharing: int, big: float, small: float) -> None:
    """16 and 8 cores that could draw 1.6 and 0.8 MB/us of 1; what one leaves at its end, the other takes up to 0.8."""
    p = parameters(core_bandwidth=1e5, hbm_sharing=sharing)
    kernels = [matmul(0, "a", 6e6, stream="main", cores=16), matmul(1, "b", 6e6, stream="side", cores=8)]
    result = simulate(workload(*kernels), [], p)
    assert result.ends[0] == pytest.approx(6 / big, **EXACT)
    assert result.ends[1] == pytest.approx(6 / big + max(0.0, 6 - 6 / big * small) / 0.8, **EXACT)


@pytest.mark.parametrize(("sharing", "share"), [(0, 1 / 2), (1, 0.9 / 3.3), (2, 1 / 25)])
def test_a_copy_beside_a_kernel_counts_as_its_equal_by_its_bandwidth_or_as_one_core(sharing: int, share: float) -> None:
    """A kernel whose 24 cores could draw 2.4 MB/us and a copy of another weight that could draw 0.9, on 1 MB/us."""
    p = parameters(core_bandwidth=1e5, cmo_bandwidth=0.9e6, hbm_sharing=sharing)
    step = workload(matmul(0, "a", 4e6), idle(1, 100.0), matmul(2, "b", 2e6))
    result = simulate(step, [Copy("b", -1, 2e6)], p)
    if share == 1 / 2:  # the copy ends first
        assert result.copies[0].end == pytest.approx(4.0, **EXACT)
        assert result.ends[0] == pytest.approx(6.0, **EXACT)
    else:
        first = 4 / (1 - share)
        assert result.ends[0] == pytest.approx(first, **EXACT)
        assert result.copies[0].end == pytest.approx(first + (2 - share * first) / 0.9, **EXACT)
