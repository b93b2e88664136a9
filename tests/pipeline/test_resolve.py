"""From recipe to plan on a small model: matches, skipped layers, bytes, order, and all problems at once."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline.target_resolver
from models.paths import Names
from models.problems import Problem
from pipeline.planned_sizes import PlannedSizes
from pipeline.recipe import parse_recipe
from pipeline.resolve import Resolution, resolve
from pipeline.yaml_source import YamlSource
from tests.pipeline.toy import LAYERS, build_module, model_and_step

O_PROJ = "layers.{i}.self_attn.o_proj"
ROUTER = {"weight": "layers.{i}.moe.router", "dependency": O_PROJ}
GATE_UP = {"weight": "layers.{i}.mlp.gate_up", "dependency": O_PROJ}
DOWN = {"weight": "layers.{i}.mlp.down", "dependency": "layers.{i}.mlp.gate_up:input"}
NEXT = {"weight": "layers.{i+1}.self_attn.q_a", "dependency": "layers.{i}.mlp.down"}
MODEL, STEP = model_and_step()


def run(
    targets: dict[str, Any], model: Any = MODEL, step: Any = STEP, sizes: Any = None, **prefetch: Any
) -> Resolution:
    data = {"name": "t", "model": "toy", "prefetch": {"targets": targets, **prefetch}}
    recipe, problems = parse_recipe(data)
    assert problems == []
    return resolve(recipe, model, step, sizes=sizes)


def the_problem(result: Resolution) -> Problem:
    assert len(result.problems) == 1, "\n".join(map(str, result.problems))
    return result.problems[0]


def refused(target: dict[str, Any], code: str, part: str) -> Problem:
    problem = the_problem(run({"x": target}))
    assert (problem.severity, problem.code, problem.key) == ("error", code, f"recipe.prefetch.targets.x.{part}")
    return problem


def test_one_line_covers_all_layers_and_the_next_layer_needs_no_special_case() -> None:
    result = run({"router": ROUTER, "next": NEXT})
    assert result.problems == ()
    router, following = result.matches
    assert (router.matched, router.skipped) == (LAYERS, 0)
    assert (following.matched, following.skipped) == (LAYERS - 1, 1)
    assert following.example == "model.layers.1.self_attn.q_a.weight"
    assert len(result.plan.prefetch) == 2 * LAYERS - 1


def test_the_plan_is_in_the_order_of_events_then_of_the_recipe() -> None:
    result = run({"down": DOWN, "next": NEXT, "gate_up": GATE_UP, "router": ROUTER})
    order = [(p.layer, p.target) for p in result.plan.prefetch]
    one = ["gate_up", "router", "down", "next"]
    assert order == [(i, t) for i in range(LAYERS) for t in one if (i, t) != (LAYERS - 1, "next")]
    events = [p.event for p in result.placements]
    assert events == sorted(events)


def test_an_entry_says_everything_a_transform_needs() -> None:
    (entry, *_) = run({"down": {**DOWN, "offset": 8}}).plan.prefetch
    assert (entry.weight, entry.dependency, entry.port, entry.layer) == (
        "model.layers.0.mlp.down.qweight",
        "model.layers.0.mlp.gate_up",
        "input",
        0,
    )
    assert (entry.theoretical_size, entry.max_size, entry.offset) == (96 * 64, 96 * 32, 8)


def test_the_plan_of_equal_recipes_has_equal_hashes() -> None:
    assert run({"router": ROUTER}).plan.hash == run({"router": ROUTER}).plan.hash
    assert run({"router": ROUTER}).plan.hash != run({"router": ROUTER}, coefficient=0.7).plan.hash


@given(st.decimals(min_value="0.001", max_value=1, places=3))
def test_the_size_is_the_exact_floor(coefficient: Decimal) -> None:
    (entry, *_) = run({"d": DOWN}, coefficient=float(coefficient)).plan.prefetch
    assert entry.max_size == (96 * 64 * int(coefficient * 1000)) // 1000


def test_floats_would_have_been_one_byte_off() -> None:
    # 0.29 is a little less than 29/100 in binary: int(0.29 * 100) is 28.
    weight = 6144
    (entry, *_) = run({"d": {**DOWN, "coefficient": 0.7}}).plan.prefetch
    assert entry.max_size == weight * 7 // 10
    recipe, _ = parse_recipe(
        {"name": "t", "model": "toy", "prefetch": {"targets": {"d": {**DOWN, "coefficient": 0.29}}}}
    )
    step = replace(STEP, weight_bytes={k: 100 for k in STEP.weight_bytes})
    assert resolve(recipe, MODEL, step).plan.prefetch[0].max_size == 29


def test_a_targets_coefficient_beats_the_recipes() -> None:
    one, other = run({"a": {**GATE_UP, "coefficient": 1}, "b": ROUTER}, coefficient=0.25).matches
    assert (one.coefficient, one.max_size) == (1, one.theoretical_size)
    assert (other.coefficient, other.max_size * 4) == (Decimal("0.25"), other.theoretical_size)


def test_only_keeps_the_named_targets() -> None:
    result = run({"a": GATE_UP, "b": ROUTER}, only=["b"])
    assert [m.target for m in result.matches] == ["b"]
    assert {p.target for p in result.plan.prefetch} == {"b"}


def test_a_disabled_recipe_gives_an_empty_plan() -> None:
    result = run({"a": GATE_UP}, enabled=False)
    assert (result.plan.prefetch, result.problems, result.matches) == ((), (), ())


def test_full_names_sets_and_wildcards_work() -> None:
    assert run({"x": {**GATE_UP, "weight": "model.layers.{i}.mlp.gate_up"}}).matches[0].matched == LAYERS
    picked = run({"x": {"weight": "layers.[1,2-3].mlp.gate_up", "dependency": O_PROJ}})
    assert [p.layer for p in picked.plan.prefetch] == [1, 2, 3]
    every = run({"x": {"weight": "layers.*.mlp.gate_up", "dependency": "layers.{i}.self_attn.o_proj"}})
    assert [p.dependency for p in every.plan.prefetch] == [f"model.layers.{i}.self_attn.o_proj" for i in range(LAYERS)]
    pairs = run({"x": {"weight": "layers.[0-1].mlp.gate_up", "dependency": "layers.*.self_attn.o_proj"}})
    assert [p.dependency for p in pairs.plan.prefetch] == [f"model.layers.{i}.self_attn.o_proj" for i in range(2)]


def test_a_weight_outside_the_layers_takes_the_layer_of_its_dependency() -> None:
    (entry,) = run({"head": {"weight": "lm_head", "dependency": "layers.3.mlp.down"}}).plan.prefetch
    assert (entry.weight, entry.layer) == ("model.embed.weight", 3)


def test_modules_and_bare_parameters_are_both_names_of_a_weight() -> None:
    after = {"dependency": "layers.{i}.moe.router"}
    experts = run({"w2": {"weight": "layers.{i}.moe.experts.w2_weight", **after}})
    assert experts.plan.prefetch[0].weight == "model.layers.0.moe.experts.w2_weight"
    quantised = run({"down": DOWN}).plan.prefetch[0]
    assert quantised.weight.endswith("mlp.down.qweight")


def test_the_match_table_names_what_shares_the_window() -> None:
    (down,) = run({"down": {**DOWN, "dependency": "layers.{i}.mlp.gate_up"}}).matches
    assert down.crosses == ("SwiGLU",)
    assert down.in_flight == down.max_size
    assert (down.window, down.l2_share) == (None, None)


def test_a_pattern_that_matches_nothing_names_the_nearest_paths() -> None:
    problem = refused({**GATE_UP, "weight": "layers.{i}.mlp.gate_pu"}, "no-match", "weight")
    assert "`model.layers.0.mlp` has no `gate_pu`; it has gate_up, act, down" in problem.message
    assert "`layers.{i}.mlp.gate_up`" in problem.fix
    problem = refused({**GATE_UP, "dependency": "layers.{i}.self_atn.o_proj"}, "no-match", "dependency")
    assert "`layers.{i}.self_attn.o_proj`" in problem.fix
    assert ".weight" not in problem.fix


def test_weight_and_dependency_must_exist_for_the_same_layer() -> None:
    problem = refused(
        {"weight": "layers.{i+3}.mlp.gate_up", "dependency": "layers.{i-1}.mlp.down"}, "no-match", "dependency"
    )
    assert "never exist for the same layer (the model has 4 layers)" in problem.message


@pytest.mark.parametrize(
    ("weight", "word"),
    [
        ("layers.{i}.post_norm", "norm"),
        ("layers.{i}.self_attn.rotary_emb", "RoPE"),
        ("layers.{i}.mlp.act", "activation"),
    ],
)
def test_what_is_no_matmul_is_no_target(weight: str, word: str) -> None:
    problem = refused({"weight": weight, "dependency": O_PROJ}, "not-a-target", "weight")
    assert word in problem.message


def test_a_module_without_its_own_weight_names_those_below() -> None:
    problem = refused({"weight": "layers.{i}.mlp", "dependency": O_PROJ}, "no-weight", "weight")
    assert "`layers.{i}.mlp.gate_up`, `layers.{i}.mlp.down`" in problem.fix


def test_a_module_with_several_weights_asks_for_one() -> None:
    problem = refused({"weight": "layers.{i}.moe.experts", "dependency": O_PROJ}, "several-weights", "weight")
    assert "`layers.{i}.moe.experts.w13_weight`" in problem.fix


@pytest.mark.parametrize(
    ("dependency", "code"),
    [
        ("layers.{i}.mlp.down", "dependency-after-target"),
        ("layers.{i}.moe.router", "dependency-in-another-branch"),
        ("layers.{i}.self_attn.q_a", "never-called"),
        ("layers.{i}.self_attn.o_proj.weight", "not-a-module"),
    ],
)
def test_illegal_dependencies_are_told_once_for_all_layers(dependency: str, code: str) -> None:
    problem = refused({**GATE_UP, "dependency": dependency}, code, "dependency")
    assert f"({LAYERS} layers)" in problem.message
    assert "nearest legal" in problem.fix or "Name a module" in problem.fix


def test_more_wildcards_in_the_dependency_than_in_the_weight_are_ambiguous() -> None:
    refused({**GATE_UP, "dependency": "layers.*.self_attn.o_proj"}, "ambiguous-wildcard", "dependency")


def test_the_same_weight_twice_is_refused_across_targets_and_names_both() -> None:
    twice = {**GATE_UP, "dependency": "layers.{i}.post_norm"}
    problem = the_problem(run({"a": GATE_UP, "b": twice}))
    assert (problem.code, problem.key) == ("prefetched-twice", "recipe.prefetch.targets.b.weight")
    assert "targets `a` and `b`" in problem.message
    assert "`layers.{i}.self_attn.o_proj`" in problem.message
    assert "`layers.{i}.post_norm`" in problem.message


def test_the_same_weight_twice_within_one_target_is_refused() -> None:
    problem = the_problem(run({"head": {"weight": "lm_head", "dependency": "layers.{i}.mlp.down"}}))
    assert problem.code == "prefetched-twice"
    assert "target `head` prefetch" in problem.message.replace("prefetches", "prefetch")


def test_two_halves_of_one_weight_do_not_overlap_but_one_byte_more_does() -> None:
    size = 64 * 192 * 4
    second = {"dependency": "layers.{i}.post_norm", "weight": GATE_UP["weight"]}
    halves = run({"a": {**GATE_UP, "max_size": size // 2}, "b": {**second, "max_size": size // 2, "offset": size // 2}})
    assert {p.code for p in halves.problems} == {"coefficient-ignored"}
    more = run(
        {"a": {**GATE_UP, "max_size": size // 2 + 1}, "b": {**second, "max_size": size // 2, "offset": size // 2}}
    )
    assert "prefetched-twice" in {p.code for p in more.problems}


def test_an_explicit_size_beats_the_coefficient_and_says_so() -> None:
    result = run({"a": {**GATE_UP, "max_size": "1 KiB"}})
    problem = the_problem(result)
    assert (problem.severity, problem.code, problem.key) == (
        "warning",
        "coefficient-ignored",
        "recipe.prefetch.targets.a.max_size",
    )
    assert (result.matches[0].max_size, result.matches[0].coefficient) == (1024, None)


def test_a_size_larger_than_the_weight_is_clamped_with_a_warning() -> None:
    result = run({"a": {**GATE_UP, "max_size": "1 GiB"}})
    clamped = next(p for p in result.problems if p.code == "size-clamped")
    assert (clamped.severity, clamped.key) == ("warning", "recipe.prefetch.targets.a.max_size")
    assert "clamped to 48 KiB" in clamped.message
    assert result.matches[0].max_size == result.matches[0].theoretical_size


def test_an_offset_leaves_less_to_copy() -> None:
    result = run({"a": {**GATE_UP, "coefficient": 1, "offset": "40 KiB"}})
    problem = the_problem(result)
    assert (problem.code, problem.key) == ("size-clamped", "recipe.prefetch.targets.a.offset")
    assert result.matches[0].max_size == 8 * 1024


def test_an_offset_behind_the_weight_is_refused() -> None:
    problem = refused({**GATE_UP, "offset": "48 KiB"}, "offset-beyond-weight", "offset")
    assert "48 KiB" in problem.message


def test_a_coefficient_that_leaves_nothing_is_refused() -> None:
    refused({**ROUTER, "coefficient": "0.0001"}, "out-of-range", "coefficient")


NAMES = (*dict(MODEL.module.named_modules()), *dict(MODEL.module.named_parameters()))
FIRST = [n.replace("model.layers.0", "layers.{i}") for n in NAMES if (n and "layers." not in n) or "layers.0." in n]
PATHS = [*FIRST, *(n.replace("{i}", "{i+1}") for n in FIRST if "{i}" in n)]


@given(st.sampled_from(PATHS), st.sampled_from(PATHS), st.sampled_from(["", ":input", ":output"]))
def test_any_pair_of_names_is_either_legal_by_the_data_flow_or_a_problem(weight: str, name: str, port: str) -> None:
    result = run({"x": {"weight": weight, "dependency": name + port}})
    assert result.plan.prefetch or result.problems
    for entry, place in zip(result.plan.prefetch, result.placements, strict=True):
        assert place.producer in STEP.ancestors(place.reader)
        assert place.reader in STEP.readers(entry.weight)
        (call,) = STEP.calls[entry.dependency]
        assert place.event == (call.enter if entry.port == "input" else call.exit)


def test_all_problems_of_all_targets_come_at_once() -> None:
    result = run(
        {
            "good": ROUTER,
            "a": {**GATE_UP, "weight": "layers.{i}.post_norm"},
            "b": {**GATE_UP, "dependency": "layers.{i}.mlp.down"},
            "c": {**GATE_UP, "weight": "nothing.here"},
            "d": {**GATE_UP, "offset": "1 MiB"},
        }
    )
    assert [p.code for p in result.problems] == [
        "not-a-target",
        "dependency-after-target",
        "no-match",
        "offset-beyond-weight",
    ]
    assert (result.matches[0].target, result.matches[0].matched) == ("good", LAYERS)


def test_problems_carry_file_and_line_unless_they_come_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        "name: t\nmodel: toy\nprefetch:\n  targets:\n    a:\n      weight: layers.{i}.nope\n"
        "      dependency: layers.{i}.mlp.down\n"
    )
    target = {"weight": "layers.{i}.nope", "dependency": "layers.{i}.mlp.down"}
    for weight, place in (("layers.{i}.nope", (str(file), 6)), ("layers.{i}.overridden", (None, None))):
        data = {"name": "t", "model": "toy", "prefetch": {"targets": {"a": {**target, "weight": weight}}}}
        recipe, _ = parse_recipe(data, YamlSource(file))
        problem = the_problem(resolve(recipe, MODEL, STEP))
        assert (problem.file, problem.line) == place


@pytest.mark.parametrize(
    ("mode", "streams", "code"),
    [("ge_graph", 0, "multi-stream-off"), ("npugraph_ex", 0, "multi-stream-off"), ("aclgraph", 1, "aclgraph")],
)
def test_modes_that_cannot_prefetch_are_refused_with_the_plan_still_shown(mode: str, streams: int, code: str) -> None:
    model, step = model_and_step(multi_stream=streams)
    recipe, _ = parse_recipe({"name": "t", "model": "toy", "prefetch": {"targets": {"router": ROUTER}}})
    result = resolve(recipe, model, step, exe_mode=mode)
    assert [p.code for p in result.problems] == [code]
    assert len(result.plan.prefetch) == LAYERS


def test_eager_is_a_warning() -> None:
    recipe, _ = parse_recipe({"name": "t", "model": "toy", "prefetch": {"targets": {"router": ROUTER}}})
    result = resolve(recipe, MODEL, STEP, exe_mode="eager")
    assert [(p.severity, p.code) for p in result.problems] == [("warning", "eager-prefetch")]
    assert "not those of an eager step" in result.problems[0].message
    assert result.plan.exe_mode == "eager"


def test_a_recipe_for_another_model_is_refused() -> None:
    recipe, _ = parse_recipe({"name": "t", "model": "other", "prefetch": {"targets": {"router": ROUTER}}})
    assert "recipe-for-another-model" in [p.code for p in resolve(recipe, MODEL, STEP).problems]


class TestRoles:
    """A role without a module skips the target; a typo is still an error; nothing left is an error."""

    @pytest.fixture(autouse=True)
    def whole_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = Names(build_module(), "model", "layers")
        monkeypatch.setattr(pipeline.target_resolver, "names_of_role_all", lambda loaded: whole)

    def test_a_target_of_the_other_side_is_skipped_with_a_warning(self) -> None:
        model, step = model_and_step("attention")
        result = run({"router": ROUTER, "gate_up": GATE_UP}, model, step)
        problem = the_problem(result)
        assert (problem.severity, problem.code, problem.key) == (
            "warning",
            "role-skipped",
            "recipe.prefetch.targets.router.weight",
        )
        assert "role `attention` does not have `layers.{i}.moe.router`" in problem.message
        assert [m.matched for m in result.matches] == [0, LAYERS]
        assert [m.skipped for m in result.matches] == [LAYERS, 0]

    def test_a_dependency_of_the_other_side_skips_too(self) -> None:
        model, step = model_and_step("ffn")
        w2 = {"weight": "layers.{i}.moe.experts.w2_weight", "dependency": "layers.{i}.moe.router"}
        result = run({"router": ROUTER, "w2": w2}, model, step)
        assert [(p.code, p.key) for p in result.problems] == [
            ("role-skipped", "recipe.prefetch.targets.router.dependency")
        ]

    def test_a_typo_is_an_error_whatever_the_role(self) -> None:
        model, step = model_and_step("attention")
        result = run({"gate_up": GATE_UP, "x": {**ROUTER, "weight": "layers.{i}.moe.ruoter"}}, model, step)
        assert [(p.severity, p.code) for p in result.problems] == [("error", "no-match")]

    def test_a_recipe_with_nothing_left_is_refused(self) -> None:
        model, step = model_and_step("ffn")
        result = run({"gate_up": GATE_UP, "down": DOWN}, model, step)
        assert [(p.severity, p.code) for p in result.problems] == [
            ("warning", "role-skipped"),
            ("warning", "role-skipped"),
            ("error", "nothing-left"),
        ]


def test_on_the_tiny_model_the_full_sizes_are_used_and_missing_layers_are_no_error() -> None:
    full = run(
        {"gate_up": GATE_UP, "late": {"weight": "layers.3.moe.router", "dependency": "layers.3.self_attn.o_proj"}}
    )
    model, step = model_and_step(layers=2)
    larger = [
        replace(p, theoretical_size=1000 * p.theoretical_size, max_size=1000 * p.max_size) for p in full.plan.prefetch
    ]
    sizes = PlannedSizes.of(Names(MODEL.module, MODEL.root, MODEL.layers), larger)
    recipe, _ = parse_recipe(
        {
            "name": "t",
            "model": "toy",
            "prefetch": {
                "targets": {
                    "gate_up": GATE_UP,
                    "late": {"weight": "layers.3.moe.router", "dependency": "layers.3.self_attn.o_proj"},
                }
            },
        }
    )
    tiny = resolve(recipe, model, step, sizes=sizes)
    assert [(p.layer, p.max_size) for p in tiny.plan.prefetch] == [(i, larger[0].max_size) for i in range(2)]
    assert [(p.severity, p.code) for p in tiny.problems] == [("warning", "not-in-tiny")]


def test_the_key_for_trees_that_cannot_run_is_ignored_with_a_warning() -> None:
    problem = the_problem(run({"a": {**GATE_UP, "in": "Layer.forward"}}))
    assert (problem.severity, problem.code) == ("warning", "in-ignored")
