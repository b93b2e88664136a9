"""Producers of tensors: views, partial writes and column slices of one storage, held against a byte-by-byte record."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from models.dataflow import Producers, Region, Weights, tensors_in, touched_bytes

ONE, TWO = frozenset((1,)), frozenset((2,))


def filled(shape=(4, 8), device="meta"):
    buffer = torch.empty(shape, device=device)
    producers = Producers()
    producers.create(buffer, frozenset((0,)))
    return buffer, producers


def test_views_share_the_producer_of_their_storage():
    buffer, producers = filled()
    for view in (buffer.t(), buffer[1:], buffer.reshape(-1), buffer.detach(), buffer.data[:, 2]):
        assert producers.of(view) == {0}
    assert producers.of(torch.empty(4, device="meta")) == frozenset()


def test_a_write_to_a_part_leaves_the_rest():
    buffer, producers = filled()
    producers.write(buffer[:2], ONE)
    assert producers.of(buffer[0]) == {1}
    assert producers.of(buffer[2:]) == {0}
    assert producers.of(buffer) == {0, 1}
    producers.write(buffer.view(-1), TWO)
    assert producers.of(buffer) == {2}


def test_columns_are_told_apart():
    buffer, producers = filled()
    producers.write(buffer[:, :4], ONE)
    producers.write(buffer[:, 4:], TWO)
    assert producers.of(buffer[:, 1:3]) == {0, 1}  # a write with gaps never hides what was there before
    assert producers.of(buffer[:, 5]) == {0, 2}
    assert producers.of(buffer.t()[6:]) == {0, 2}


def test_broadcast_views_count_each_byte_once():
    assert touched_bytes(torch.empty(1, 8, device="meta").expand(16, 8)) == 32


def test_tensors_in_walks_nested_containers_in_order():
    a, b, c = torch.empty(1), torch.empty(2), torch.empty(3)
    assert [t.numel() for t in tensors_in((1, [a, {"x": b}], None, "s", (c,)))] == [1, 2, 3]


def test_weights_are_found_through_views_and_in_shared_memory():
    flat = torch.zeros(12)
    module = nn.Module()
    module.register_parameter("a", nn.Parameter(flat[:4]))
    module.register_parameter("b", nn.Parameter(flat[4:]))
    module.c = nn.Linear(3, 2)
    weights = Weights(module)
    assert weights.bytes == {"a": 16, "b": 32, "c.weight": 24, "c.bias": 8}
    assert weights.of(module.c.weight.t()[1:]) == ["c.weight"]
    assert weights.of(module.c.weight.data) == ["c.weight"]
    assert weights.of(module.a) == ["a"] and weights.of(module.b.data[2:]) == ["b"]
    assert weights.of(flat) == ["a", "b"]
    assert weights.of(flat.clone()) == []


@st.composite
def views(draw):
    """A view of a contiguous [4, 6, 5] buffer by slices, picks and a transpose, as a function of the buffer."""
    index = tuple(
        draw(
            st.one_of(
                st.integers(0, n - 1),
                st.tuples(st.integers(0, n - 1), st.integers(1, n), st.integers(1, 2)).map(
                    lambda t, n=n: slice(t[0], min(n, t[0] + t[1]), t[2])
                ),
                st.just(slice(None)),
            )
        )
        for n in (4, 6, 5)
    )
    flip = draw(st.booleans())
    return lambda buffer: buffer[index].transpose(0, -1) if flip and buffer[index].dim() else buffer[index]


exact, told_apart = [0], [0]


@given(st.lists(views(), min_size=1, max_size=5), views())
def test_no_producer_of_a_byte_is_ever_missed(writes, read):
    """The record by regions is a superset of the truth, byte by byte."""
    buffer = torch.zeros(4, 6, 5, dtype=torch.int64)
    producers = Producers()
    producers.create(buffer, frozenset((0,)))
    for number, view in enumerate(writes, 1):
        producers.write(view(buffer), frozenset((number,)))
        view(buffer).fill_(number)
    truth = set(read(buffer).reshape(-1).tolist())
    assert truth <= producers.of(read(buffer))
    exact[0] += truth == producers.of(read(buffer))


@given(views(), views())
def test_regions_meet_whenever_they_share_a_byte(one, other):
    buffer = torch.zeros(4, 6, 5)
    one(buffer).fill_(1)
    share = bool((other(buffer) == 1).any())
    meet = Region.of(one(buffer)).meets(Region.of(other(buffer)))
    assert meet or not share
    told_apart[0] += not meet


def test_the_laws_were_exercised():
    """Both laws hold trivially if nothing is ever told apart."""
    assert exact[0] > 10 and told_apart[0] > 10
