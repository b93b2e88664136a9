"""Each single deviation from the plan is found, told by its code, and names the plan's entry."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.graph.checks import _longest_rise, check_prefetches
from pipeline.graph.graph import Mark, Node
from tests.pipeline.graph.toy_graphs import PLAN, change, drop, fx_graph, ge_graph, move

W = "w_model_layers_{}_{}"


def found(graph, plan=PLAN):
    return [(f.code, f.entry) for f in check_prefetches(graph, plan)]


def said(graph, plan=PLAN):
    return "; ".join(map(str, check_prefetches(graph, plan)))


@pytest.mark.parametrize("graph", [ge_graph(), fx_graph()], ids=["ge", "fx"])
def test_what_was_planned_passes(graph):
    assert found(graph) == []


DOWN_0 = "target down, layer 0 (model.layers.0.down.weight)"
O_NEXT = "target o_next, layer 0 (model.layers.1.o_proj.weight)"
GATE_0 = "target gate_up, layer 0 (model.layers.0.gate_up.weight)"


def unchained(graph, name, after):
    """Without a node, the chain closed again, as GE would have chained them."""
    node = graph.by_name[after]
    before = graph.by_name[name].controls[1:]
    return change(drop(graph, name), after, controls=(node.controls[0], *before))


def test_a_prefetch_that_is_missing():
    graph = unchained(ge_graph(), "Cmo_1", "Cmo_2")
    assert found(graph) == [("missing", DOWN_0)]
    assert "planned, but the graph has no Cmo of this weight" in said(graph)


def test_one_that_no_one_planned():
    graph = ge_graph()
    extra = Node("Cmo_9", "Cmo", (W.format(1, "down"),), ("o_proj_0", "Cmo_4"), {"max_size": 64})
    nodes = (*graph.nodes[:-1], extra, graph.nodes[-1])
    assert found(replace(graph, nodes=nodes)) == [("unplanned", "")]
    assert "Cmo_9 prefetches model.layers.1.down.weight" in said(replace(graph, nodes=nodes))


def test_the_same_weight_twice_is_unplanned_though_planned_once():
    graph = ge_graph()
    twin = replace(graph.by_name["Cmo_4"], name="Cmo_5", controls=("norm_1", "Cmo_4"))
    nodes = list(graph.nodes)
    nodes.insert(graph.position["Cmo_4"] + 1, twin)
    assert found(replace(graph, nodes=tuple(nodes))) == [("unplanned", "")]


def test_another_size():
    graph = change(ge_graph(), "Cmo_1", attrs={"max_size": 512})
    assert found(graph) == [("size", DOWN_0)]
    assert "max_size 512, planned 1024" in said(graph)


def test_another_offset_and_a_copy_past_the_end_of_the_weight():
    assert found(change(ge_graph(), "Cmo_1", attrs={"max_size": 1024, "offset": 64})) == [("offset", DOWN_0)]
    past = change(ge_graph(), "Cmo_1", attrs={"max_size": 1024, "offset": 3584})
    assert found(past) == [("offset", DOWN_0), ("bounds", DOWN_0)]


def test_two_parts_of_one_weight_are_told_apart_by_their_offset():
    first, second = (replace(PLAN.prefetch[0], offset=offset, target=f"part_{offset}") for offset in (0, 1024))
    graph = ge_graph()
    node = graph.by_name["Cmo_0"]
    part = replace(node, name="Cmo_0b", controls=("o_proj_0", "Cmo_0"), attrs={"max_size": 1024, "offset": 1024})
    nodes = list(graph.nodes)
    nodes.insert(graph.position["Cmo_0"] + 1, part)
    graph = change(replace(graph, nodes=tuple(nodes)), "Cmo_1", controls=("norm_0", "Cmo_0b"))
    assert found(graph, replace(PLAN, prefetch=(first, second, *PLAN.prefetch[1:]))) == []


@pytest.mark.parametrize("op", ["Identity", "Transpose", "StridedSliceV2"])
def test_a_source_that_is_not_the_weight_itself(op):
    graph = ge_graph()
    weight = W.format(0, "down")
    nodes = list(graph.nodes)
    nodes.insert(graph.position["Cmo_1"], Node("copy", op, (weight,)))
    graph = change(replace(graph, nodes=tuple(nodes)), "Cmo_1", inputs=("copy",))
    assert found(graph) == [("source", DOWN_0)]
    assert f"Cmo_1 reads copy ({op}), made from the weight" in said(graph)


def test_a_dependency_that_is_another_tensor():
    graph = change(ge_graph(), "Cmo_1", controls=("o_proj_0", "Cmo_0"))
    assert found(graph) == [("dependency", DOWN_0)]
    text = "Cmo_1 waits for o_proj_0 (MatMul), planned model.layers.0.gate_up:input = norm_0 (RmsNorm)"
    assert text in said(graph)


def test_a_dependency_behind_a_reshape_is_the_same_tensor():
    graph = ge_graph()
    nodes = list(graph.nodes)
    nodes.insert(graph.position["Cmo_1"], Node("flat", "Reshape", ("norm_0",)))
    assert found(change(replace(graph, nodes=tuple(nodes)), "Cmo_1", controls=("flat", "Cmo_0"))) == []


@pytest.mark.parametrize("name", ["x", "w_model_layers_0_gate_up"])
def test_a_dependency_that_is_an_input_orders_nothing(name):
    graph = change(ge_graph(), "Cmo_1", controls=(name, "Cmo_0"))
    assert found(graph) == [("dependency-is-input", DOWN_0)]


def test_no_dependency_at_all():
    assert found(change(ge_graph(), "Cmo_1", controls=("Cmo_0",))) == [("dependency", DOWN_0)]


def test_a_planned_dependency_that_is_an_input_itself():
    graph = ge_graph()
    marks = tuple(replace(m, node="x") if m.node == "norm_0" else m for m in graph.marks)
    assert ("dependency-is-input", DOWN_0) in found(
        replace(change(graph, "Cmo_1", controls=("x", "Cmo_0")), marks=marks)
    )


def test_a_dependency_that_is_not_called():
    graph = ge_graph()
    marks = tuple(m for m in graph.marks if m.node != "norm_0")
    assert found(replace(graph, marks=marks)) == [("dependency-not-called", DOWN_0)]


def test_of_several_calls_any_counts():
    graph = ge_graph()
    earlier = Mark("model.layers.0.gate_up", "input", "o_proj_0", "o_proj_0")
    assert found(replace(graph, marks=(earlier, *graph.marks))) == []


def test_a_prefetch_behind_its_target():
    # Moved in the text, the dependency unchanged: only the place tells.
    late = move(ge_graph(), "Cmo_1", "down_0")
    assert ("late", DOWN_0) in found(late)
    assert "Cmo_1 comes after down_0 (MatMul), which reads the weight" in said(late)


def test_a_prefetch_that_must_wait_for_its_target():
    graph = change(ge_graph(), "Cmo_1", controls=("down_0", "Cmo_0"))
    assert ("late", DOWN_0) in found(graph)
    assert "can't start before down_0 (MatMul), which reads the weight, has ended" in said(graph)


def test_the_chain_makes_a_prefetch_wait_for_what_an_earlier_one_waits_for():
    # Cmo_3 itself waits for o_proj_1 only, but is chained behind one that waits for its target.
    graph = change(ge_graph(), "Cmo_2", controls=("gate_up_1", "Cmo_1"))
    codes = found(graph)
    assert ("late", "target gate_up, layer 1 (model.layers.1.gate_up.weight)") in codes
    assert ("dependency", O_NEXT) in codes


def test_a_weight_that_no_kernel_reads():
    graph = change(ge_graph(), "down_0", inputs=("gate_up_0",))
    assert found(graph) == [("unread", DOWN_0)]


def test_two_prefetches_in_the_other_order():
    # gate_up and down of layer 0 swapped, and chained the other way round.
    graph = move(ge_graph(), "Cmo_0", "Cmo_1")
    graph = change(change(graph, "Cmo_1", controls=("norm_0",)), "Cmo_0", controls=("o_proj_0", "Cmo_1"))
    graph = change(graph, "Cmo_2", controls=("down_0", "Cmo_0"))
    ((code, entry),) = found(graph)
    assert (code, entry) in (("order", DOWN_0), ("order", GATE_0))
    assert "planned" in said(graph)


@given(st.permutations(range(7)))
def test_as_few_as_possible_are_blamed_for_the_order(places):
    # Against trying every subset: the rest is the largest part that is in order.
    def rises(part):
        return all(places[i] < places[j] for i, j in itertools.pairwise(part))

    best = max(len(part) for n in range(8) for part in itertools.combinations(range(7), n) if rises(part))
    kept = _longest_rise(places)
    assert len(kept) == best
    assert rises(sorted(kept))


def test_one_that_moved_far_is_blamed_alone():
    graph = move(ge_graph(), "Cmo_0", "Cmo_4")
    codes = found(graph)
    assert ("order", GATE_0) in codes
    assert {entry for code, entry in codes if code == "order"} == {GATE_0}
    assert "Cmo_0 comes after Cmo_1" in said(graph)


def test_a_chain_that_is_broken():
    assert found(change(ge_graph(), "Cmo_2", controls=("down_0",))) == [("chain", "")]


def test_every_deviation_is_reported_not_only_the_first():
    graph = change(ge_graph(), "Cmo_1", attrs={"max_size": 1}, controls=("x", "Cmo_0"))
    graph = change(graph, "Cmo_2", attrs={"max_size": 2})
    assert found(graph) == [("size", DOWN_0), ("dependency-is-input", DOWN_0), ("size", O_NEXT)]


class TestStreamsOfNpugraphEx:
    def test_a_plain_call_runs_on_the_main_stream(self):
        graph = fx_graph()
        attrs = {k: v for k, v in graph.by_name["Cmo_0"].attrs.items() if k != "stream"}
        assert found(change(graph, "Cmo_0", attrs=attrs)) == [("stream", GATE_0)]

    def test_without_an_event_it_does_not_wait_for_its_dependency(self):
        graph = drop(fx_graph(), "wait_Cmo_0")
        assert found(graph) == [("event", GATE_0)]
        assert "no event makes Cmo_0 wait for o_proj_0" in said(graph)

    def test_an_event_from_before_the_dependency_is_too_early(self):
        graph = move(fx_graph(), "record_Cmo_1", "o_proj_0")
        assert found(graph) == [("event", DOWN_0)]

    def test_a_stream_that_is_not_joined(self):
        graph = drop(fx_graph(), "wait_end")
        assert {code for code, _ in found(graph)} == {"join"}
        assert "107025" in said(graph)

    def test_two_side_streams_have_no_order(self):
        graph = fx_graph()
        attrs = {**graph.by_name["Cmo_2"].attrs, "stream": "42"}
        assert ("chain", O_NEXT) in found(change(graph, "Cmo_2", attrs=attrs))

    @pytest.mark.parametrize("op", ["air.scope_enter.default", "air.npu_fused_infer_attention_score_v2.default"])
    def test_torchairs_own_operators_do_not_run_there(self, op):
        graph = fx_graph()
        nodes = (Node("enter", op), Node("exit", "air.scope_exit.default"), *graph.nodes)
        assert found(replace(graph, nodes=nodes)) == [("ge-only", "")]
        assert f"1 {op}" in said(replace(graph, nodes=nodes))

    def test_a_kernel_that_reads_a_result_of_another_stream_without_waiting_for_it(self):
        graph = change(fx_graph(), "norm_0", attrs={"stream": "42"})
        assert found(graph).count(("race", "")) == 2  # it does not wait for o_proj_0, nor gate_up_0 for it
        assert "no event makes norm_0 (RmsNorm) wait for o_proj_0" in said(graph)
        event = {"record": "n", "stream": "42"}
        nodes = list(graph.nodes)
        at = graph.position["norm_0"]
        around = [
            Node("r0", "record", attrs={"record": "o"}),
            Node("w0", "wait", attrs={"wait": "o", "stream": "42"}),
            nodes[at],
            Node("r1", "record", attrs=event),
            Node("w1", "wait", attrs={"wait": "n"}),
        ]
        nodes[at : at + 1] = around
        assert ("race", "") not in found(replace(graph, nodes=tuple(nodes)))
