"""Questions to a graph: what a tensor really is, who reads a weight, and what must wait for what."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.graph.graph import Graph, Node
from tests.pipeline.graph.toy_graphs import drop, fx_graph, ge_graph


def ge(*nodes: Node) -> Graph:
    return Graph("ge", nodes)


def test_a_tensor_behind_reshapes_is_its_producer():
    graph = ge(
        Node("w", "Data"),
        Node("m", "MatMul", ("w",)),
        Node("r", "Reshape", ("m",)),
        Node("i", "Identity", ("r",)),
        Node("s", "StridedSliceV2", ("i",)),
    )
    assert graph.origin("i").name == "m"
    assert graph.origin("s").name == "s"  # a slice of an activation is a kernel of its own


def test_readers_of_a_weight_are_found_through_layouts_and_prefetches_do_not_count():
    graph = ge(
        Node("w", "Data"),
        Node("t", "Transpose", ("w",)),
        Node("c", "Cmo", ("w",), ("t",)),
        Node("m", "MatMul", ("t",)),
        Node("n", "MatMul", ("w",)),
    )
    assert {n.name for n in graph.readers("w")} == {"m", "n"}


def test_in_ge_data_and_control_edges_order():
    graph = ge_graph()
    assert graph.must_wait("down_0", "o_proj_0")
    assert graph.must_wait("Cmo_2", "down_0")
    assert graph.must_wait("Cmo_4", "Cmo_0")  # the chain
    assert not graph.must_wait("down_0", "Cmo_0")  # kernels never wait for a copy
    assert not graph.must_wait("o_proj_0", "down_0")


def test_in_an_fx_graph_streams_and_events_order_and_data_does_not():
    graph = fx_graph()
    assert graph.must_wait("Cmo_0", "o_proj_0")
    assert graph.must_wait("gate_up_0", "o_proj_0")
    assert graph.must_wait("output", "Cmo_4")
    without = drop(graph, "wait_Cmo_0")
    assert not without.must_wait("Cmo_0", "o_proj_0")  # though it is its dependency
    assert without.must_wait("Cmo_1", "o_proj_0")


def test_an_event_that_is_recorded_later_orders_nothing():
    graph = Graph(
        "fx",
        (
            Node("a", "mm"),
            Node("wait", "wait", attrs={"wait": "e", "stream": "1"}),
            Node("b", "mm", attrs={"stream": "1"}),
            Node("record", "record", attrs={"record": "e"}),
        ),
    )
    assert not graph.must_wait("b", "a")


@pytest.mark.parametrize("graph", [ge_graph(), fx_graph()], ids=["ge", "fx"])
def test_json_keeps_everything(graph):
    assert Graph.from_json(json.loads(json.dumps(graph.to_json()))) == graph


@given(st.data())
def test_waiting_is_reachability(data):
    # Against a plain search, on random graphs whose edges go forward.
    size = data.draw(st.integers(1, 12))
    edges = [data.draw(st.sets(st.integers(0, i - 1)) if i else st.just(set())) for i in range(size)]
    graph = ge(*(Node(str(i), "X", tuple(map(str, sorted(before)))) for i, before in enumerate(edges)))

    def reaches(i: int, j: int) -> bool:
        return any(k == j or reaches(k, j) for k in edges[i])

    assert all(graph.must_wait(str(i), str(j)) == reaches(i, j) for i in range(size) for j in range(i))
