"""Aligning kernel sequences: repeated layers, kernels that only one side has, and how sure a pair is."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.mapping.align import NEVER, Sequence, align, best_score

NORM, MATMUL, ATTENTION, OTHER = range(4)
LAYER = [(NORM, 0), (MATMUL, 100), (ATTENTION, 0), (MATMUL, 60), (NORM, 0), (MATMUL, 200), (MATMUL, 90)]
BASE = np.where(np.eye(4, dtype=bool), 3.0, NEVER)


def sequence(kernels: list[tuple[int, int]]) -> Sequence:
    family, weights = (np.array([k[column] for k in kernels]) for column in (0, 1))
    return Sequence(family, weights.astype(float), weights.astype(float))


def test_equal_sequences_are_paired_one_to_one_and_surely() -> None:
    found = align(sequence(LAYER * 3), sequence(LAYER * 3), BASE)
    assert found.left.tolist() == found.right.tolist() == list(range(21))
    assert found.margin.min() >= 1.0


def test_a_kernel_that_the_model_does_not_know_is_left_out_and_the_rest_keeps_its_place() -> None:
    profile = [*LAYER, (OTHER, 0), *LAYER]
    found = align(sequence(profile), sequence(LAYER * 2), BASE)
    assert 7 not in found.left
    assert found.right.tolist() == list(range(14))


def test_which_of_two_layers_is_missing_cannot_be_told_and_the_margin_says_so() -> None:
    found = align(sequence(LAYER), sequence(LAYER * 2), BASE)
    assert len(found.left) == 7
    assert found.margin.max() == 0.0


def test_weights_of_another_size_are_not_paired() -> None:
    found = align(sequence([(MATMUL, 100)]), sequence([(MATMUL, 200)]), BASE)
    assert not len(found.left)


def test_a_weight_whose_size_is_a_range_is_paired_where_the_range_holds_the_size() -> None:
    experts = Sequence(np.array([MATMUL]), np.array([10.0]), np.array([400.0]))
    assert align(experts, sequence([(MATMUL, 200)]), BASE).right.tolist() == [0]


def test_nothing_aligns_with_nothing() -> None:
    assert not len(align(sequence([]), sequence(LAYER), BASE).left)


def test_sequences_beyond_memory_are_refused() -> None:
    long = sequence([(NORM, 0)] * 10_000)
    with pytest.raises(ValueError, match="too many to align"):
        align(long, long, BASE)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 6), st.lists(st.integers(0, 40), max_size=6, unique=True), st.randoms(use_true_random=False))
def test_insertions_never_move_what_is_there(layers: int, places: list[int], rng: random.Random) -> None:
    """Kernels that the model does not have, at random places of a profile, leave every other pair as it was."""
    model = LAYER * layers
    profile: list[tuple[int, int]] = list(model)
    truth = list(range(len(model)))
    for place in sorted((p for p in places if p <= len(model)), reverse=True):
        profile.insert(place, (OTHER, 0))
        truth.insert(place, -1)
    found = align(sequence(profile), sequence(model), BASE)
    assert [truth[i] for i in found.left] == found.right.tolist() == list(range(len(model)))
    assert sorted(found.left.tolist()) == found.left.tolist()


def test_the_score_alone_is_that_of_the_alignment() -> None:
    rng = np.random.default_rng(5)
    base = np.where(np.eye(4, dtype=bool), 3.0, NEVER)
    for _ in range(20):
        sides = []
        for _ in range(2):
            family = rng.integers(0, 4, rng.integers(0, 9))
            sizes = rng.choice([0.0, 8.0, 16.0], len(family))
            sides.append(Sequence(family, sizes, sizes))
        assert best_score(*sides, base) == align(*sides, base).score
