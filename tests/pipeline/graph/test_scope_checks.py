"""SuperKernel scopes: exactly the planned kernels carry label and options; what cuts a scope is told."""

from dataclasses import replace

import pytest

from pipeline.fusable import UNFUSABLE
from pipeline.graph.graph import Mark, Node
from pipeline.graph.notes import Note, grouped
from pipeline.graph.operators import OTHER_NAMES, differing
from pipeline.graph.scope_checks import check_scopes, count_scoped
from tests.pipeline.graph.toy_graphs import PLAN, change, fqn, fx_graph, ge_graph
from transforms.plan import Scope

OPTIONS = "feed-sync-all=1:debug-aic-num=1:0"
SCOPES = tuple(
    Scope(f"k{i}", (("feed-sync-all", "1"), ("debug-aic-num", "1:0")), fqn(i, "gate_up"), fqn(i, "down"))
    for i in range(2)
)
SCOPED = replace(PLAN, scopes=SCOPES)
ENTRY = "scope k0 (model.layers.0.gate_up .. model.layers.0.down)"
INSIDE = ("Cmo_{}", "transposed_{}", "gate_up_{}", "down_{}")  # between entering gate_up and leaving down


def scoped(graph):
    """The toy graph with gate_up to down of each layer in a scope; the prefetch of down falls into it."""
    for layer in range(2):
        for name in INSIDE:
            node = graph.by_name[name.format(1 if layer == 0 and "Cmo" in name else 4 if "Cmo" in name else layer)]
            attrs = {**node.attrs, "scope": f"k{layer}", "options": OPTIONS}
            graph = change(graph, node.name, attrs=attrs)
    return graph


INNER = dict.fromkeys(("k0", "k1"), ("MatMul", "MatMul"))  # what a workload has inside


def findings(graph, plan=SCOPED, inner=INNER):
    return check_scopes(graph, plan, inner)[0]


def found(graph, plan=SCOPED, inner=INNER):
    return [(f.code, f.entry) for f in findings(graph, plan, inner)]


def all_notes(graph):
    return check_scopes(graph, SCOPED, INNER)[1]


def notes(graph):
    return [(f.code, f.entry) for f in all_notes(graph)]


@pytest.mark.parametrize("graph", [ge_graph(), fx_graph()], ids=["ge", "fx"])
def test_what_was_planned_passes(graph):
    assert found(scoped(graph)) == []
    assert count_scoped(scoped(graph)) >= 4


def test_without_scopes_there_is_nothing_to_say():
    assert check_scopes(ge_graph(), PLAN, {}) == ([], [])


def test_a_scope_that_is_closed_early():
    graph = scoped(ge_graph())
    attrs = {}
    assert found(change(graph, "down_0", attrs=attrs)) == [("scope-open", ENTRY)]
    (finding,) = findings(change(graph, "down_0", attrs=attrs))
    assert "first down_0 (MatMul): no scope" in finding.message


@pytest.mark.parametrize("make", [ge_graph, fx_graph], ids=["ge", "fx"])
def test_a_kernel_inside_that_no_workload_has(make):
    graph = scoped(make())
    place = graph.position["down_0"]
    item = Node(
        "item", "LocalScalarDense" if graph.kind == "ge" else "aten._local_scalar_dense.default", ("gate_up_0",)
    )
    item = replace(item, attrs=graph.by_name["down_0"].attrs)
    end = replace(graph.nodes[-1], inputs=(*graph.nodes[-1].inputs, "item"))
    (finding,) = findings(replace(graph, nodes=(*graph.nodes[:place], item, *graph.nodes[place:-1], end)))
    assert (finding.code, finding.entry) == ("scope-kernels", ENTRY)
    said = "3 kernels between its first and last module, 2 planned: 1 x LocalScalarDense not planned"
    assert finding.message.startswith(said)
    assert "item" in finding.message


def test_a_kernel_that_the_graph_lacks():
    (finding,) = findings(scoped(ge_graph()), inner={**INNER, "k0": ("MatMul", "Cast", "MatMul")})
    assert (finding.code, finding.entry) == ("scope-kernels", ENTRY)
    assert finding.message == "2 kernels between its first and last module, 3 planned: 1 x Cast missing"


def test_as_many_kernels_of_another_operator():
    (finding,) = findings(scoped(ge_graph()), inner={**INNER, "k0": ("MatMul", "Cast")})
    assert "1 x MatMul not planned; 1 x Cast missing" in finding.message


def test_what_stands_for_the_other_side_of_a_disaggregated_deployment_is_no_deviation():
    norm = ("Cast", "Pow", "ReduceMean", "Add", "Rsqrt", "Cast", "Mul")
    for kind, made in (("ge", (*norm, "Cast")), ("fx", norm)):
        assert differing(("Recv", "MatMul", "Send"), (*made, "MatMul"), kind) == ({}, {})
        assert differing(("MatMul", "Send"), (*made, "MatMul"), kind)[1].total() == len(made)


def test_other_names_of_one_kernel_are_no_deviation():
    for ours, theirs in OTHER_NAMES:
        assert differing((ours, ours, "Add"), (theirs, "Add", theirs), "fx") == ({}, {})
        assert differing((ours,), (theirs, theirs), "fx") == ({}, {theirs: 1})


def test_a_scope_that_is_missing_altogether():
    assert {code for code, _ in found(ge_graph())} == {"scope-open"}
    assert len(found(ge_graph())) == len(SCOPES)


def test_a_kernel_in_the_scope_of_another_layer():
    graph = scoped(ge_graph())
    wrong = change(graph, "down_0", attrs={"scope": "k1", "options": OPTIONS})
    assert ("scope-open", ENTRY) in found(wrong)
    assert ("scope-outside", "scope k1 (model.layers.1.gate_up .. model.layers.1.down)") in found(wrong)


def test_a_kernel_outside_that_carries_the_label():
    graph = change(scoped(ge_graph()), "norm_0", attrs={"scope": "k0", "options": OPTIONS})
    assert found(graph) == [("scope-outside", ENTRY)]


def test_a_change_of_shape_at_the_border_is_no_kernel():
    # The argument of the first module's call may be made inside the scope.
    graph = change(scoped(ge_graph()), "norm_0", op="Reshape", attrs={"scope": "k0", "options": OPTIONS})
    assert found(graph) == []


def test_a_label_that_was_not_planned():
    graph = change(scoped(ge_graph()), "norm_0", attrs={"scope": "mine"})
    assert found(graph) == [("scope-unplanned", "")]


def test_other_options():
    graph = change(scoped(ge_graph()), "down_0", attrs={"scope": "k0", "options": "feed-sync-all=0"})
    assert found(graph) == [("scope-options", ENTRY)]


def test_a_module_that_is_not_called():
    graph = scoped(ge_graph())
    marks = tuple(m for m in graph.marks if (m.module, m.port) != (fqn(0, "down"), "output"))
    assert ("scope-missing", ENTRY) in found(replace(graph, marks=marks))


def test_last_before_first():
    backwards = replace(PLAN, scopes=(Scope("k0", (), fqn(1, "gate_up"), fqn(0, "down")),))
    assert [code for code, _ in found(ge_graph(), backwards)] == ["scope-order"]


def test_several_calls_span_from_the_first_to_the_last():
    graph = scoped(ge_graph())
    again = Mark(fqn(0, "gate_up"), "input", "norm_0", "gate_up_0")
    assert found(replace(graph, marks=(*graph.marks, again))) == []


def test_an_unfusable_kernel_inside_is_told_and_fails_nothing():
    graph = change(scoped(ge_graph()), "gate_up_0", op="Cast")
    assert found(graph, inner={**INNER, "k0": ("Cast", "MatMul")}) == []
    assert ("scope-split", ENTRY) in notes(graph)
    assert ("scope-split", ENTRY) not in notes(scoped(ge_graph()))


@pytest.mark.parametrize("entry", UNFUSABLE, ids=lambda entry: entry.ops[0])
def test_what_cuts_a_scope_is_what_the_workloads_table_says(entry):
    for op in entry.ops:
        told = grouped(all_notes(change(scoped(ge_graph()), "gate_up_0", op=op)))
        assert f"1 x {op} inside scope k{{i}} ({entry.why})" in map(str, told)
        assert f"({entry.why_zh})" in told[0].zh


def test_names_of_npugraph_ex_are_known_to_the_table():
    graph = change(scoped(fx_graph()), "gate_up_0", op="aten._to_copy.default")
    assert "1 x Cast inside scope k{i} (TBE kernel)" in map(str, grouped(all_notes(graph)))


def test_notes_of_all_layers_are_one():
    graph = change(change(scoped(ge_graph()), "gate_up_0", op="Cast"), "gate_up_1", op="Cast")
    told = grouped(all_notes(graph))
    assert [str(group) for group in told] == [
        "2 x Cast inside scope k{i} (TBE kernel)",
        "2 x prefetch inside scope k{i}",
    ]
    assert told[0].zh == "scope k{i} 内有 2 个 Cast(TBE 算子)"
    assert told[0].to_json() == {
        "code": "scope-split",
        "message": "2 x Cast inside scope k{i} (TBE kernel)",
        "scope": "k{i}",
        "first": "model.layers.{i}.gate_up",
        "last": "model.layers.{i}.down",
        "count": 2,
        "layers": "0-1",
    }


def test_the_pattern_of_a_scope():
    def pattern(label, first, last):
        (group,) = grouped([Note("scope-split", "", "", Scope(label, (), first, last), "Cast", "", 3)])
        return group.label, group.first, group.last, group.count

    assert pattern("attn_1_1", fqn(1, "self_attn.1"), fqn(2, "norm")) == (
        "attn_{i}_1",
        "model.layers.{i}.self_attn.1",
        "model.layers.{i+1}.norm",
        3,
    )
    assert pattern("head", "lm_head", "lm_head") == ("head", "lm_head", "lm_head", 3)


def test_a_prefetch_inside_is_told():
    assert ("prefetch-in-scope", ENTRY) in notes(scoped(ge_graph()))
