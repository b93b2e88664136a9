"""SuperKernel scopes: exactly the planned kernels carry label and options; what cuts a scope is told."""

from dataclasses import replace

import pytest

from pipeline.fusable import UNFUSABLE
from pipeline.graph.graph import Mark
from pipeline.graph.notes import Note, grouped
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


def found(graph, plan=SCOPED):
    return [(f.code, f.entry) for f in check_scopes(graph, plan)[0]]


def notes(graph, plan=SCOPED):
    return [(f.code, f.entry) for f in check_scopes(graph, plan)[1]]


@pytest.mark.parametrize("graph", [ge_graph(), fx_graph()], ids=["ge", "fx"])
def test_what_was_planned_passes(graph):
    assert found(scoped(graph)) == []
    assert count_scoped(scoped(graph)) >= 4


def test_without_scopes_there_is_nothing_to_say():
    assert check_scopes(ge_graph(), PLAN) == ([], [])


def test_a_scope_that_is_closed_early():
    graph = scoped(ge_graph())
    attrs = {}
    assert found(change(graph, "down_0", attrs=attrs)) == [("scope-open", ENTRY)]
    (finding,) = check_scopes(change(graph, "down_0", attrs=attrs), SCOPED)[0]
    assert "first down_0 (MatMul): no scope" in finding.message


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
    assert found(graph) == []
    assert ("scope-split", ENTRY) in notes(graph)
    assert ("scope-split", ENTRY) not in notes(scoped(ge_graph()))


@pytest.mark.parametrize("entry", UNFUSABLE, ids=lambda entry: entry.ops[0])
def test_what_cuts_a_scope_is_what_the_workloads_table_says(entry):
    for op in entry.ops:
        told = grouped(check_scopes(change(scoped(ge_graph()), "gate_up_0", op=op), SCOPED)[1])
        assert f"1 x {op} inside scope k{{i}} ({entry.why})" in map(str, told)
        assert f"({entry.why_zh})" in told[0].zh


def test_names_of_npugraph_ex_are_known_to_the_table():
    graph = change(scoped(fx_graph()), "gate_up_0", op="aten._to_copy.default")
    assert "1 x Cast inside scope k{i} (TBE kernel)" in map(str, grouped(check_scopes(graph, SCOPED)[1]))


def test_notes_of_all_layers_are_one():
    graph = change(change(scoped(ge_graph()), "gate_up_0", op="Cast"), "gate_up_1", op="Cast")
    told = grouped(check_scopes(graph, SCOPED)[1])
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
