"""Which layers the tiny model keeps."""

from itertools import pairwise

import pytest

from models.hf.tiny import kept_layers

LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"


def kept(*types: str) -> list[int]:
    return kept_layers({"num_hidden_layers": len(types), "layer_types": list(types)})


def test_attentions_that_differ_by_their_mask_are_kept_once_each() -> None:
    assert kept(*[SLIDING, SLIDING, SLIDING, FULL] * 3) == [0, 3]


@pytest.mark.parametrize("types", [[LINEAR, LINEAR, LINEAR, FULL] * 4, [FULL, LINEAR] * 5, ["conv", FULL, FULL] * 3])
def test_other_mixers_come_behind_whatever_they_follow(types: list[str]) -> None:
    layers = kept(*types)
    assert layers == list(range(layers[0], layers[-1] + 1))
    assert set(pairwise(types[i] for i in layers)) == set(pairwise(types))


def test_a_long_run_is_not_taken() -> None:
    assert kept(*[LINEAR] * 20, FULL, *[LINEAR] * 3, SLIDING, FULL) == [0, 20, 24]
