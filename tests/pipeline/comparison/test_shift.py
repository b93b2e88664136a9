"""The interval of a change: exact for few steps, none for too few, right about noise."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.comparison import shift
from pipeline.comparison.shift import faster, level, rank_cut


def by_counting(n: int, m: int) -> int | None:
    """The same cut from all orders of n and m values."""
    sums = [sum(chosen) - n * (n - 1) // 2 for chosen in combinations(range(n + m), n)]
    best = None
    for cut in range(n * m + 1):
        if sum(s <= cut for s in sums) / len(sums) <= 0.025:
            best = cut
    return best


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 20), (2, 3), (3, 3), (3, 5), (4, 4), (2, 8), (5, 5), (6, 7)])
def test_the_cut_is_that_of_all_orders_counted_one_by_one(n: int, m: int) -> None:
    assert rank_cut(n, m) == by_counting(n, m)


def test_three_steps_of_each_are_too_few_and_four_are_enough() -> None:
    assert rank_cut(3, 3) is None and rank_cut(4, 4) == 0
    figure = faster(np.array([10.0, 10.1, 10.2]), np.array([5.0, 5.1, 5.2]))
    assert figure is not None and figure.value == pytest.approx(50.0, abs=1.0)
    assert figure.low is None and figure.high is None


def test_many_steps_take_the_normal_distribution_which_hardly_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = rank_cut(50, 50)
    monkeypatch.setattr(shift, "_EXACT", 0)
    assert exact is not None and abs(exact - rank_cut.__wrapped__(50, 50)) <= 2  # type: ignore[operator]


def test_a_change_of_ten_per_cent_is_found_with_its_sign() -> None:
    rng = np.random.default_rng(1)
    before = 100 * (1 + 0.01 * rng.standard_normal(8))
    figure = faster(before, 0.9 * 100 * (1 + 0.01 * rng.standard_normal(8)))
    assert figure is not None and figure.low is not None and figure.high is not None
    assert figure.low < 10.0 < figure.high and figure.low > 8.0 and figure.provenance == "measured"
    slower = faster(before, 1.1 * before)
    assert slower is not None and slower.high is not None and slower.high < -5.0


def test_one_wild_step_does_not_decide() -> None:
    before, after = np.array([10.0, 10.1, 9.9, 10.05, 9.95, 10.02]), np.array([10.0, 9.9, 10.1, 10.03, 9.97, 90.0])
    figure = faster(before, after)
    assert figure is not None and figure.low is not None and abs(figure.value) < 1 and figure.high > 0


@pytest.mark.parametrize("steps", [4, 6, 12])
def test_noise_alone_excludes_zero_in_at_most_one_of_twenty(steps: int) -> None:
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(1000):
        figure = faster(*np.exp(0.02 * rng.standard_t(3, (2, steps))))
        assert figure is not None and figure.low is not None and figure.high is not None
        wrong += not figure.low <= 0 <= figure.high
    assert wrong <= 65  # 5 % and two standard deviations


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.floats(0.1, 1e4), min_size=4, max_size=12), st.lists(st.floats(0.1, 1e4), min_size=4, max_size=12))
def test_the_value_is_inside_its_interval_and_the_unit_does_not_matter(first: list[float], then: list[float]) -> None:
    before, after = np.array(first), np.array(then)
    figure, other = faster(before, after), faster(1000 * before, 1000 * after)
    assert figure is not None and figure.low is not None and figure.high is not None and other is not None
    assert figure.low <= figure.value <= figure.high <= 100
    assert other.value == pytest.approx(figure.value, abs=1e-6)


def test_no_time_on_one_side_is_no_change() -> None:
    assert faster(np.array([0.0, 1.0]), np.array([1.0, 1.0])) is None
    assert faster(np.array([]), np.array([1.0])) is None


def test_levels_have_the_spread_over_steps_and_one_step_has_none() -> None:
    figure = level(np.arange(11.0))
    assert (figure.low, figure.value, figure.high) == (1.0, 5.0, 9.0)
    assert level(np.array([4.0])).low is None
