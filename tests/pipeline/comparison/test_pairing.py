"""Kernels of both steps find each other, whatever a prefetch, a fusion or another run adds, takes away or renames."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.comparison.pairing import Pairs, pair
from pipeline.comparison.side import Side
from tests.pipeline.comparison.cases import Kernel, decode_step, run, side, with_copies


def names(before: Side, after: Side, pairs: Pairs) -> list[tuple[str, str]]:
    """Names of the pairs, which the sides were given for that (an alignment does not look at names)."""
    return [(before.names[a], after.names[b]) for a, b in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)]


def test_equal_steps_are_paired_one_by_one() -> None:
    before, after = side(run(seed=1)), side(run(seed=2), "b")
    pairs = pair(before, after)
    assert pairs.left.tolist() == pairs.right.tolist() == list(range(len(before)))
    assert not len(pairs.only_left) and not len(pairs.only_right) and not len(pairs.copies)


def test_copies_of_prefetches_are_told_apart_and_shift_nothing() -> None:
    before, after = side(run(seed=1)), side(run(edit=with_copies, seed=2), "b")
    pairs = pair(before, after)
    assert len(pairs.left) == len(before) and len(pairs.copies) == 4
    assert all(a == b for a, b in names(before, after, pairs))


def test_copies_on_the_main_stream_shift_nothing_either() -> None:
    def inline(kernels: list[Kernel]) -> list[Kernel]:
        return [{**k, "stream": "2"} for k in with_copies(kernels)]

    before, after = side(run(seed=1)), side(run(edit=inline, seed=2), "b")
    pairs = pair(before, after)
    assert len(pairs.left) == len(before) and all(a == b for a, b in names(before, after, pairs))


def test_fused_kernels_leave_the_others_paired() -> None:
    """SwiGlu goes into a fused kernel with the norm before it: another operator, of a kind that we don't know."""

    def fused(kernels: list[Kernel]) -> list[Kernel]:
        found = [k for k in kernels if k["name"] != "swiglu"]
        return [{**k, "op_type": "FusedBlob", "name": "fused"} if k["name"] == "post_norm" else k for k in found]

    before, after = side(run(seed=1)), side(run(edit=fused, seed=2), "b")
    pairs = pair(before, after)
    assert {before.names[k] for k in pairs.only_left.tolist()} == {"swiglu", "post_norm"}
    assert {after.names[k] for k in pairs.only_right.tolist()} == {"fused"}
    assert all(a == b for a, b in names(before, after, pairs))


def test_streams_with_other_numbers_are_found() -> None:
    def renamed(kernels: list[Kernel]) -> list[Kernel]:
        return [{**k, "stream": "31"} for k in kernels]

    before, after = side(run(seed=1)), side(run(edit=renamed, seed=2), "b")
    pairs = pair(before, after)
    assert len(pairs.left) == len(before) and pairs.streams == {0: 0}


def test_a_matmul_of_another_weight_is_not_the_same_kernel() -> None:
    def other(kernels: list[Kernel]) -> list[Kernel]:
        shapes = {"input_shapes": "8,5000;5000,4096"}
        return [{**k, **shapes, "name": "other"} if k["name"] == "down" else k for k in kernels]

    before, after = side(run(seed=1)), side(run(edit=other, seed=2), "b")
    pairs = pair(before, after)
    assert {before.names[k] for k in pairs.only_left.tolist()} == {"down"}


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    st.sets(st.integers(0, len(decode_step()) - 1), max_size=6),
    st.sets(st.integers(0, len(decode_step()) - 1), max_size=6),
)
def test_whatever_is_taken_away_and_inserted_pairs_are_in_order_and_of_one_operator(
    gone: set[int], inserted: set[int]
) -> None:
    def edit(kernels: list[Kernel]) -> list[Kernel]:
        found = []
        for n, kernel in enumerate(kernels):
            if n in inserted:
                found.append({"op_type": "TensorMove", "core": "AI_VECTOR_CORE", "duration_us": 2.0, "name": "extra"})
            if n not in gone:
                found.append(kernel)
        return found

    before, after = side(run(seed=1, steps=3)), side(run(edit=edit, seed=2, steps=3), "b")
    pairs = pair(before, after)
    assert len(pairs.left) == len(before) - len(gone) and len(pairs.only_right) == len(inserted)
    assert (np.diff(pairs.left) > 0).all() and (np.diff(pairs.right) > 0).all()
    for a, b in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True):
        assert before.sequence.ops[a] == after.sequence.ops[b]
