"""From `recipe.superkernel` to scopes on a small model: strategies, custom scopes, order, and what is wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from models.problems import Problem
from models.workload import ModuleCall, Workload
from pipeline.planned_sizes import PlannedSizes
from pipeline.preconditions import PRECONDITIONS, Places, waived
from pipeline.recipe import parse_recipe
from pipeline.resolve import Resolution, resolve
from pipeline.scope_spans import Calls, fused_scopes
from pipeline.simulator.machine import load_machine
from pipeline.yaml_source import YamlSource
from tests.pipeline.toy import LAYERS, model_and_step

MODEL, STEP = model_and_step()
MOE = {"first": "layers.{i}.moe"}
HEAD = {"first": "layers.{i}.input_norm", "last": "layers.{i}.post_norm"}
MLP = {"first": "layers.{i}.mlp"}


def run(
    strategy: str = "custom",
    scopes: Any = None,
    model: Any = MODEL,
    step: Workload = STEP,
    prefetch: Any = None,
    mode: str = "ge_graph",
    machine: Any = None,
    **section: Any,
) -> Resolution:
    written = {"enabled": True, "strategy": strategy, "scopes": scopes, **section}
    data = {"name": "t", "model": "toy", "superkernel": written, "prefetch": prefetch}
    recipe, problems = parse_recipe(data)
    assert problems == []
    return resolve(recipe, model, step, machine, exe_mode=mode)


def errors(result: Resolution) -> list[Problem]:
    return [p for p in result.problems if p.severity == "error"]


def warned(result: Resolution) -> dict[str, Problem]:
    return {p.code: p for p in result.problems if p.severity == "warning"}


def places(result: Resolution) -> list[tuple[str, str, str]]:
    return [(s.label, s.first, s.last) for s in result.plan.scopes]


def renamed(op: str, other: str) -> Workload:
    """The step with another operator instead."""
    return replace(STEP, kernels=tuple(replace(k, op=other) if k.op == op else k for k in STEP.kernels))


def the_error(result: Resolution, code: str, key: str) -> Problem:
    (problem,) = errors(result)
    assert (problem.code, problem.key) == (code, f"recipe.superkernel.{key}")
    assert problem.fix
    return problem


# --- strategies ---------------------------------------------------------------------------------------------------


def test_attention_is_one_scope_per_attention_module() -> None:
    result = run("attention", options={"stream-fusion": 1})
    assert errors(result) == []
    assert places(result)[1] == ("attention_1", "model.layers.1.self_attn", "model.layers.1.self_attn")
    assert len(result.plan.scopes) == LAYERS
    assert {s.options for s in result.plan.scopes} == {(("stream-fusion", "1"),)}


def test_moe_is_found_by_what_it_launches() -> None:
    assert places(run("moe"))[2] == ("moe_2", "model.layers.2.moe", "model.layers.2.moe")


def test_decoder_layers_is_one_scope_over_the_loop() -> None:
    result = run("decoder_layers")
    assert places(result) == [("decoder_layers", "model.layers.0", f"model.layers.{LAYERS - 1}")]
    (row,) = result.scope_matches
    assert row.kernels == sum(k.layer is not None or "layers" in k.module for k in STEP.kernels)


def test_layers_without_experts_are_skipped_and_counted() -> None:
    dense = {f"model.layers.0.moe{part}" for part in ("", ".experts", ".router")}
    calls = {fqn: found for fqn, found in STEP.calls.items() if fqn not in dense}
    result = run("moe", step=replace(STEP, calls=calls))
    (row,) = result.scope_matches
    assert (row.matched, row.skipped) == (LAYERS - 1, 1)


def test_a_strategy_that_covers_nothing_is_refused() -> None:
    model, step = model_and_step("attention")
    problem = the_error(run("moe", model=model, step=step), "no-match", "strategy")
    assert "role `attention`" in problem.message


def test_layers_that_run_in_another_order_are_no_loop_to_put_a_scope_around() -> None:
    """The first layer runs last: refused, not left out."""
    first, last = (STEP.calls[f"model.layers.{i}"] for i in (0, LAYERS - 1))
    swapped = {
        "model.layers.0": tuple(replace(c, fqn="model.layers.0") for c in last),
        f"model.layers.{LAYERS - 1}": tuple(replace(c, fqn=f"model.layers.{LAYERS - 1}") for c in first),
    }
    step = replace(STEP, calls={**STEP.calls, **swapped})
    the_error(run("decoder_layers", step=step), "first-after-last", "strategy")


def test_auto_takes_the_longest_chains_that_leave_streams_apart_and_says_why() -> None:
    result = run("auto")
    assert result.scopes.strategy == "chains"
    assert [s.label for s in result.plan.scopes[:4]] == ["chain_0_0", "chain_0_1", "chain_0_2", "chain_1_0"]
    assert places(result)[0][1:] == ("model.layers.0.input_norm", "model.layers.0.post_norm")
    assert places(result)[2][1:] == ("model.layers.0.mlp", "model.layers.0.mlp")
    choice = result.scopes.choice
    assert choice is not None
    saved = {c.strategy: (c.launches_saved // LAYERS, c.serialises) for c in choice.candidates}
    assert saved["attention"] == (2, False) and saved["moe"] == (4, False) and saved["chains"] == (4 + 4 + 2, False)
    assert saved["decoder_layers"][1]
    for text in (choice.why.en, choice.why.zh):
        assert "chains" in text and "moe" in text and "decoder_layers" in text
    assert "without running streams one after the other" in choice.why.en


def test_auto_takes_the_whole_loop_where_there_is_one_stream() -> None:
    one = replace(STEP, kernels=tuple(replace(k, stream="main") for k in STEP.kernels))
    assert run("auto", step=one).scopes.strategy == "decoder_layers"


@pytest.mark.parametrize(("op", "strategy"), [("GroupedMatmul", "moe"), ("MatMul", "attention")])
def test_auto_without_evidence_follows_the_decision_tree(op: str, strategy: str) -> None:
    """No two kernels fuse: experts decide."""
    kernels = tuple(
        replace(k, op=op if k.op == "GroupedMatmul" else "FusedInferAttentionScore", engine="idle", fixed_us=1.0)
        for k in STEP.kernels
    )
    result = run("auto", step=replace(STEP, kernels=kernels))
    assert result.scopes.strategy == strategy
    assert result.scopes.choice is not None and "no scope that saves launches" in result.scopes.choice.why.en


def test_the_tiny_model_takes_what_auto_chose_at_full_size() -> None:
    recipe, _ = parse_recipe({"name": "t", "model": "toy", "superkernel": {"enabled": True, "strategy": "auto"}})
    tiny = resolve(recipe, MODEL, STEP, sizes=PlannedSizes(), strategy="moe")
    assert {p.part.name for p in tiny.scopes.placed} == {"moe"}
    assert tiny.problems == ()


def test_a_section_that_is_off_gives_no_scope() -> None:
    assert run("moe", enabled=False).plan.scopes == ()


# --- custom scopes ------------------------------------------------------------------------------------------------


def test_several_scopes_per_layer_come_in_execution_order() -> None:
    result = run(
        scopes={"mlp": {**MLP, "options": {"feed-sync-all": 1}}, "head": HEAD, "moe": {**MOE, "label": "e{i}"}}
    )
    assert errors(result) == []
    assert [s.label for s in result.plan.scopes[:4]] == ["head_0", "e0", "mlp_0", "head_1"]
    assert result.plan.scopes[2].options == (("feed-sync-all", "1"),)
    rows = {row.name: row for row in result.scope_matches}
    assert (rows["head"].first, rows["head"].last) == tuple(HEAD.values())
    assert (rows["head"].kernels, rows["head"].launches_saved) == (5 * LAYERS, 4 * LAYERS)
    assert rows["moe"].streams == ("moe",)


def test_what_the_caller_launches_between_first_and_last_is_inside() -> None:
    """The dispatch stands between router and experts and belongs to no module of its own."""
    result = run(scopes={"x": {"first": "layers.{i}.moe.router", "last": "layers.{i}.moe.experts"}})
    span = result.scopes.placed[0].span
    assert [STEP.kernels[k].op for k in span.kernels] == [
        "MatMul",
        "MoeDistributeDispatch",
        "GroupedMatmul",
        "GroupedMatmul",
    ]


def test_wildcards_give_one_scope_each_with_numbered_labels() -> None:
    result = run(scopes={"part": {"first": "layers.0.*.act", "last": "layers.0.*.down"}})
    assert errors(result) == []
    assert places(result) == [("part", "model.layers.0.mlp.act", "model.layers.0.mlp.down")]


def test_scopes_over_some_layers_are_labelled_with_the_layer() -> None:
    result = run(scopes={"mlp": {"first": "layers.[2-3].mlp"}, "moe": {"first": "layers.1.moe", "label": "e_{i}"}})
    assert errors(result) == []
    assert [s.label for s in result.plan.scopes] == ["e_1", "mlp_2", "mlp_3"]
    rows = {row.name: row for row in result.scope_matches}
    assert (rows["mlp"].first, rows["mlp"].matched) == ("layers.{i}.mlp", 2)
    assert rows["moe"].first == "layers.1.moe"


def test_several_scopes_in_one_layer_are_numbered_within_it() -> None:
    result = run(scopes={"norm": {"first": "layers.[0-1].*", "label": "n{i}"}})
    labels = [s.label for s in result.plan.scopes]
    assert labels[:2] == ["n0_0", "n0_1"] and "n1_0" in labels and len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("pattern", "lost"), [("layers.[0-5].mlp", "4 to 5; there are 0 to 3"), ("layers.[9].mlp", "9;")]
)
def test_indices_of_layers_that_do_not_exist_are_refused(pattern: str, lost: str) -> None:
    assert lost in the_error(run(scopes={"x": {"first": pattern}}), "no-match", "scopes.x.first").message


def test_a_label_with_a_layer_outside_the_layers_is_refused() -> None:
    problem = the_error(run(scopes={"x": {"first": "norm", "label": "x_{i}"}}), "bad-label", "scopes.x.label")
    assert "`norm` lies in no decoder layer" in problem.message


@pytest.mark.parametrize(
    ("scope", "code", "part"),
    [
        ({"first": "layers.{i}.mpl"}, "no-match", "first"),
        ({"first": "layers.{i}.mlp.up", "last": "layers.{i}.mlp"}, "no-match", "first"),
        ({"first": "layers.{i}.mlp", "last": "layers.{i}.moee"}, "no-match", "last"),
        ({"first": "layers.{i}.mlp", "last": "layers.{i+9}.mlp"}, "no-match", "last"),
        ({"first": "layers.{i}.self_attn.q_a"}, "never-called", "first"),
        ({"first": "layers.{i}.self_attn.q_a.weight"}, "not-a-module", "first"),
        ({"first": "layers.{i}.mlp", "last": "layers.{i}.moe"}, "first-after-last", "first"),
        ({"first": "layers.{i}.mlp", "last": "layers.{i}.self_attn"}, "first-after-last", "first"),
        ({"first": "layers.{i}.self_attn.o_proj", "last": "layers.{i}.mlp"}, "not-in-one-forward", "last"),
        ({"first": "layers.{i}", "last": "layers.{i}.mlp"}, "not-in-one-forward", "last"),
    ],
)
def test_a_scope_that_cannot_be_is_refused_with_its_key(scope: dict[str, str], code: str, part: str) -> None:
    the_error(run(scopes={"x": scope}), code, f"scopes.x.{part}")


def test_a_caller_without_a_name_is_the_whole_model() -> None:
    calls = {**STEP.calls, "lm_head": (ModuleCall("lm_head", 10**6, 10**6 + 1, None, None),)}
    scope = {"first": "layers.0", "last": "lm_head"}
    problem = the_error(
        run(scopes={"x": scope}, step=replace(STEP, calls=calls)), "not-in-one-forward", "scopes.x.last"
    )
    assert "`lm_head` by the whole model" in problem.message and "``" not in problem.message


def test_an_empty_scope_is_refused() -> None:
    kernels = [k for k in STEP.kernels if "mlp.act" not in k.module]
    number = {k.index: i for i, k in enumerate(kernels)}
    renumbered = tuple(replace(k, index=i, inputs=()) for i, k in enumerate(kernels))
    calls = {
        fqn: tuple(replace(c, output_kernel=number.get(c.output_kernel or -1)) for c in found)
        for fqn, found in STEP.calls.items()
    }
    step = replace(STEP, kernels=renumbered, calls=calls)
    problem = the_error(run(scopes={"x": {"first": "layers.{i}.mlp.act"}}, step=step), "empty-scope", "scopes.x.first")
    assert "(4 layers)" in problem.message


def test_a_module_that_is_called_twice_is_no_boundary() -> None:
    name = "model.layers.0.mlp"
    (call,) = STEP.calls[name]
    again = ModuleCall(name, call.exit + 1, call.exit + 2, None, call.output_kernel)
    step = replace(STEP, calls={**STEP.calls, name: (call, again)})
    problem = the_error(run(scopes={"x": {"first": "layers.0.mlp"}}, step=step), "called-repeatedly", "scopes.x.first")
    assert "2 times" in problem.message


def test_overlapping_scopes_are_refused_once() -> None:
    result = run(scopes={"head": HEAD, "norm": {"first": "layers.{i}.post_norm"}})
    problem = the_error(result, "scopes-overlap", "scopes.norm")
    assert "`head_0`" in problem.message and "`norm_0`" in problem.message


def test_a_scope_around_others_overlaps_all_of_them() -> None:
    result = run(scopes={"all": {"first": "layers.{i}"}, "moe": MOE, "mlp": MLP})
    assert {(p.code, p.key) for p in errors(result)} == {
        ("scopes-overlap", "recipe.superkernel.scopes.moe"),
        ("scopes-overlap", "recipe.superkernel.scopes.mlp"),
    }


def test_a_label_used_twice_is_refused() -> None:
    result = run(scopes={"head": {**HEAD, "label": "x{i}"}, "mlp": {**MLP, "label": "x{i}"}})
    the_error(result, "label-twice", "scopes.mlp")


def test_a_role_without_the_module_skips_the_scope() -> None:
    """The whole model is loaded to tell this from a typo; the toy has none, so its loader is replaced."""
    model, step = model_and_step("attention")
    from models.paths import Names

    whole = Names(MODEL.module, "model", "layers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.scopes.names_of_role_all", lambda _: whole)
        result = run(scopes={"moe": MOE, "mlp": MLP}, model=model, step=step)
    assert errors(result) == []
    assert warned(result)["role-skipped"].key == "recipe.superkernel.scopes.moe.first"
    assert {row.name for row in result.scope_matches} == {"mlp"}


# --- remarks ------------------------------------------------------------------------------------------------------


def test_what_cuts_a_scope_is_told_with_the_reason() -> None:
    step = renamed("MoeDistributeDispatch", "Cast")
    result = run("moe", step=step)
    assert "4 Cast (TBE kernel)" in warned(result)["scope-cut"].message
    (row,) = result.scope_matches
    assert (row.fusable, row.launches_saved, row.superkernels) == (3 * LAYERS, 2 * LAYERS, LAYERS)


def test_a_scope_in_which_nothing_fuses_is_told() -> None:
    step = renamed("SwiGLU", "StridedSlice")
    assert "nothing-fuses" in warned(run(scopes={"x": {"first": "layers.{i}.mlp.act"}}, step=step))


def test_streams_that_one_scope_serialises_are_told() -> None:
    result = run("decoder_layers")
    assert "streams main, moe" in warned(result)["streams-serialised"].message
    assert "streams-serialised" not in warned(run("auto"))


def test_stream_fusion_helps_pure_cube_beside_pure_vector() -> None:
    kernels = tuple(replace(k, engine="cube" if k.stream == "moe" else "vector", op="MatMul") for k in STEP.kernels)
    step = replace(STEP, kernels=kernels)
    scopes = {"x": {"first": "layers.{i}.moe", "last": "layers.{i}.mlp"}}
    assert "streams-serialised" in warned(run(scopes=scopes, step=step))
    assert "streams-serialised" not in warned(run(scopes=scopes, step=step, options={"stream-fusion": 1}))


PREFETCH = {
    "targets": {
        "down": {"weight": "layers.{i}.mlp.down", "dependency": "layers.{i}.mlp.gate_up:input"},
        "gate_up": {"weight": "layers.{i}.mlp.gate_up", "dependency": "layers.{i}.post_norm"},
    }
}


def test_a_prefetch_issued_inside_a_scope_is_told_and_one_at_its_end_is_not() -> None:
    result = run(scopes={"head": HEAD, "mlp": MLP}, prefetch=PREFETCH)
    told = [p for p in result.problems if p.code == "prefetch-in-scope"]
    assert [p.key for p in told] == ["recipe.superkernel.scopes.mlp"]
    assert "(targets down)" in told[0].message


class Looks(nn.Module):
    """Breaks a graph in three ways."""

    def forward(self, x: Tensor) -> Tensor:
        if (x > 0).any():
            x = x * 2
        return self.helper(x)

    def helper(self, x: Tensor) -> Tensor:
        print(x.sum().item())
        return x

    def unused(self, x: Tensor) -> list[float]:
        return x.tolist()


def test_a_scope_over_a_graph_break_is_refused_with_file_and_line() -> None:
    model, step = model_and_step()
    for layer in model.module.model.layers:
        layer.mlp.act = Looks()
    result = run(scopes={"mlp": MLP}, model=model, step=step)
    found = errors(result)
    assert {p.code for p in found} == {"graph-break"}
    text = "\n".join(p.message for p in found)
    assert "depends on data (`(x > 0).any()`)" in text and "`.item()`" in text and "`print`" in text
    lines = Path(__file__).read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.strip() == "if (x > 0).any():")
    assert f"{__file__}:{line}:" in text
    assert "tolist" not in text  # forward never calls it
    assert errors(run(scopes={"head": HEAD}, model=model, step=step)) == []


# --- preconditions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "machine", "allow", "refused"),
    [
        ("ge_graph", "atlas_a3", [], []),
        ("npugraph_ex", "atlas_a3", [], ["superkernel-mode"]),
        ("npugraph_ex", "atlas_a3", ["npugraph_ex"], []),
        ("eager", "atlas_a3", ["npugraph_ex"], ["superkernel-mode"]),
        ("aclgraph", "atlas_a3", ["npugraph_ex"], ["superkernel-mode"]),
        ("ge_graph", "atlas_a2", [], ["superkernel-generation"]),
        ("ge_graph", "atlas_a2", ["a2"], []),
        ("npugraph_ex", "atlas_a2", ["a2"], ["superkernel-mode"]),
        ("ge_graph", "atlas_950", ["a2", "npugraph_ex"], ["superkernel-generation"]),
    ],
)
def test_modes_and_generations(mode: str, machine: str, allow: list[str], refused: list[str]) -> None:
    where = load_machine(machine, **({"l2_bytes": 1 << 27} if machine == "atlas_950" else {}))
    assert [p.code for p in errors(run("moe", mode=mode, machine=where, allow=allow))] == refused


def test_what_a_recipe_allows_is_remembered() -> None:
    assert [c.allowance for c in waived(("a2", "npugraph_ex"), "npugraph_ex", "a3")] == ["npugraph_ex"]
    assert waived((), "npugraph_ex", "a3") == ()


def test_a_violation_names_file_and_line_unless_the_command_line_says_it(tmp_path: Path) -> None:
    file = tmp_path / "conf" / "runtime" / "eager.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# a comment\nname: eager\nexe_mode: eager\n")
    recipe, _ = parse_recipe({"name": "t", "model": "toy", "superkernel": {"enabled": True, "strategy": "moe"}})
    for written, place in (("eager", (str(file), 3)), ("aclgraph", (None, None))):
        known = Places({"runtime": {"exe_mode": written}}, {"runtime": file})
        result = resolve(recipe, MODEL, STEP, exe_mode=written, places=known)
        (problem,) = errors(result)
        assert (problem.file, problem.line) == place


def test_every_precondition_says_what_to_do() -> None:
    for condition in PRECONDITIONS:
        assert condition.status == "met" or (condition.why and condition.fix and condition.code)
        assert (condition.status == "by_opt_in") == bool(condition.allowance)


def test_a_cache_that_grows_is_refused() -> None:
    model, step = model_and_step()
    model.module.config = type("Config", (), {"use_cache": True})()
    the_error(run("moe", model=model, step=step), "dynamic-kv-cache", "enabled")
    model.module.config.cache_implementation = "static"
    assert errors(run("moe", model=model, step=step)) == []


def test_problems_of_scopes_name_the_line_of_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        "name: t\nmodel: toy\nsuperkernel:\n  enabled: true\n  strategy: custom\n  scopes:\n"
        "    x:\n      first: layers.{i}.nope\n"
    )
    scopes = {"x": {"first": "layers.{i}.nope"}}
    section = {"enabled": True, "strategy": "custom", "scopes": scopes}
    recipe, _ = parse_recipe({"name": "t", "model": "toy", "superkernel": section}, YamlSource(file))
    (problem,) = errors(resolve(recipe, MODEL, STEP))
    assert (problem.file, problem.line) == (str(file), 8)


# --- figures ------------------------------------------------------------------------------------------------------


def test_savings_are_launches_times_what_a_launch_costs_and_the_simulated_step_agrees_on_one_stream() -> None:
    machine = load_machine("atlas_a3")
    (row,) = run("attention", machine=machine).scope_matches
    assert row.launch_saving is not None and row.step_saving is not None
    assert row.launch_saving.value == pytest.approx(2 * (1.3 + 0.1))
    assert row.launch_saving.low is not None and row.launch_saving.high is not None
    assert row.launch_saving.low == 0.0  # if attention does not fuse, nothing is left
    assert row.launch_saving.high > row.launch_saving.value
    assert row.step_saving.value == pytest.approx(row.launch_saving.value)  # attention is on the critical path
    (experts,) = run("moe", machine=machine).scope_matches
    assert experts.launch_saving is not None and experts.step_saving is not None
    assert experts.step_saving.value <= experts.launch_saving.value + 1e-9


def test_more_cores_than_the_machine_has_are_refused() -> None:
    machine = load_machine("atlas_a3")
    cores = {"debug-aic-num": machine.cores, "debug-aiv-num": machine.vector_cores}
    assert errors(run("moe", machine=machine, options=cores)) == []
    more = {name: 2 * count for name, count in cores.items()}
    keys = {p.key for p in errors(run(scopes={"moe": {**MOE, "options": more}}, machine=machine))}
    assert keys == {f"recipe.superkernel.scopes.moe.options.{name}" for name in cores}


def test_rows_are_json() -> None:
    data = run("moe", machine=load_machine("atlas_a3")).scope_matches[0].to_json()
    assert data["fusable_share"] == 1.0 and data["launch_saving"]["provenance"] == "modelled"
    assert data["cut_by"] == []


def test_the_plan_gives_the_simulator_its_scopes() -> None:
    result = run("auto", options={"stream-fusion": 1})
    fused = fused_scopes(result.plan, STEP)
    assert [f.kernels for f in fused] == [p.span.kernels for p in result.scopes.placed]
    assert all(f.stream_fusion for f in fused)
    with pytest.raises(ValueError, match="not in this workload"):
        fused_scopes(result.plan, replace(STEP, calls={}))


def test_a_span_of_modules_in_the_wrong_order_is_none() -> None:
    calls = Calls(STEP)
    assert calls.span("model.layers.0.mlp", "model.layers.0.moe") is None
    assert calls.span("nothing", "model.layers.0.moe") is None
