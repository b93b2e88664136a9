"""Generic recipes name roles, not modules: on several models, and what is said where they do not fit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from models.loading import load, load_deployment, load_spec
from models.trace import trace
from pipeline.recipe import parse_recipe
from pipeline.resolve import Resolution, resolve
from pipeline.yaml_source import YamlSource

CONF = Path(__file__).parents[2] / "conf"


def generic(name: str, **changes: Any) -> tuple[Any, Any]:
    file = CONF / "recipe" / "generic" / f"{name}.yaml"
    data: Any = OmegaConf.to_container(OmegaConf.load(file))
    for key, value in changes.items():
        data["prefetch"][key] = value
    return parse_recipe(data, YamlSource(file))


def resolved(name: str, model: str, size: str = "tiny", sizes: Any = None, **changes: Any) -> Resolution:
    recipe, problems = generic(name, **changes)
    assert problems == []
    loaded = load(load_spec(model), load_deployment("unsharded"), "ge_graph", size)  # type: ignore[arg-type]
    return resolve(recipe, loaded, trace(loaded), sizes=sizes)


def pairs(result: Resolution, layer: int, target: str) -> list[tuple[str, str]]:
    """(weight, dependency) of one target whose dependency is in this layer, without the layer list."""
    found = [p for p in result.plan.prefetch if p.target == target and f"layers.{layer}." in p.dependency]
    return [(p.weight.split("layers.")[1], p.dependency.split("layers.")[1]) for p in found]


def errors(result: Resolution) -> list[str]:
    return [p.code for p in result.problems if p.severity == "error"]


def test_the_mlp_of_a_dense_model() -> None:
    result = resolved("mlp", "qwen3")
    assert errors(result) == []
    assert pairs(result, 1, "up") == [("1.mlp.gate_up_proj.weight", "1.self_attn.o_proj")]
    assert pairs(result, 1, "down") == [("1.mlp.down_proj.weight", "1.mlp.gate_up_proj")]
    # Gate and up are merged in this model: the target of gate alone is skipped, and that is said.
    assert [(p.severity, p.code) for p in result.problems] == [("warning", "no-such-role")]
    assert result.problems[0].key == "recipe.prefetch.targets.gate.weight"
    assert result.problems[0].line is not None


def test_where_a_role_names_several_the_dependency_is_the_nearest() -> None:
    result = resolved("mlp", "longcat_flash")
    assert pairs(result, 0, "up") == [
        ("0.mlps.0.gate_up_proj.weight", "0.self_attn.0.o_proj"),
        ("0.mlps.1.gate_up_proj.weight", "0.self_attn.1.o_proj"),
    ]
    assert pairs(result, 0, "down") == [
        ("0.mlps.0.down_proj.weight", "0.mlps.0.gate_up_proj"),
        ("0.mlps.1.down_proj.weight", "0.mlps.1.gate_up_proj"),
    ]
    assert {m.target: m.matched for m in result.matches} == {"gate": 0, "up": 6, "down": 6}


def test_across_layers_only_the_first_attention_of_two_is_next() -> None:
    result = resolved("attention", "longcat_flash")
    assert {w.rpartition(".self_attn.")[2] for w, _ in pairs(result, 0, "next")} == {
        "0.q_a_proj.weight",
        "0.kv_a_proj_with_mqa.weight",
    }
    assert {d for _, d in pairs(result, 0, "next")} == {"0.mlps.1"}
    following = next(m for m in result.matches if m.target == "next")
    assert following.skipped == 1  # behind the last layer comes none


def test_the_experts_of_a_mixture() -> None:
    result = resolved("moe", "qwen3_moe")
    assert pairs(result, 1, "router") == [("1.mlp.gate.weight", "1.self_attn.o_proj")]
    assert pairs(result, 1, "experts_up") == [("1.mlp.experts.w13_weight", "1.mlp.gate")]
    assert pairs(result, 1, "experts_down") == [("1.mlp.experts.w2_weight", "1.mlp.gate")]
    assert [m.target for m in result.matches if not m.matched] == ["shared_gate", "shared_up", "shared_down"]


def test_layers_without_the_role_are_counted() -> None:
    match = next(m for m in resolved("mlp", "deepseek_v3").matches if m.target == "up")
    assert (match.matched, match.skipped) == (1, 2)


def test_the_tiny_model_takes_the_bytes_of_the_full_one() -> None:
    full = resolved("mlp", "qwen3", "full")
    tiny = resolved("mlp", "qwen3", sizes=full.sizes)
    assert tiny.problems == ()
    assert {p.max_size for p in tiny.plan.prefetch} == {p.max_size for p in full.plan.prefetch}


def test_a_model_that_a_recipe_does_not_fit_is_refused_with_its_roles() -> None:
    result = resolved("moe", "qwen3")
    assert errors(result) == ["nothing-left"]
    problem = result.problems[-1]
    assert "qwen3" in problem.message and "mlp.up (3)" in problem.fix and "moe" not in problem.fix.split(":")[-1]


def recipe_with(weight: str, dependency: str = "layers.{i}@attention.out", model: str | None = "qwen3") -> Any:
    data: dict[str, Any] = {"name": "t", "prefetch": {"targets": {"x": {"weight": weight, "dependency": dependency}}}}
    return parse_recipe(data | ({"model": model} if model else {}))


def test_in_a_recipe_of_one_model_an_absent_role_is_an_error_that_lists_the_others() -> None:
    recipe, problems = recipe_with("layers.{i}@moe.router")
    assert problems == []
    loaded = load(load_spec("qwen3"), load_deployment("unsharded"), "ge_graph", "tiny")
    (problem,) = resolve(recipe, loaded, trace(loaded)).problems
    assert (problem.severity, problem.code) == ("error", "no-such-role")
    assert "mlp.up (3)" in problem.message


@pytest.mark.parametrize(
    ("weight", "code", "text"),
    [
        ("layers.{i}@mlp.upp", "unknown-role", "mlp.up"),
        ("layers.{i}@moe.routr", "unknown-role", "moe.router"),
        ("layers.{i}@", "bad-pattern", "no role"),
        ("layers.{i}@Mlp.Up", "bad-pattern", "no role"),
        ("@mlp.up", "bad-pattern", "layers.{i}@mlp.up"),
        ("layers@mlp.up", "bad-pattern", "layers.{i}@mlp.up"),
    ],
)
def test_what_is_no_role_is_told(weight: str, code: str, text: str) -> None:
    (problem,) = recipe_with(weight)[1]
    assert (problem.code, problem.key) == (code, "recipe.prefetch.targets.x.weight")
    assert text in f"{problem.message} {problem.fix}"


def test_a_recipe_without_a_model_may_name_roles_only() -> None:
    assert recipe_with("layers.{i}@mlp.up", model=None)[1] == []
    (problem,) = recipe_with("layers.{i}.mlp.up_proj", model=None)[1]
    assert (problem.code, problem.key) == ("missing-key", "recipe.model")
    assert "layers.{i}.mlp.up_proj" in problem.message


def test_the_path_before_the_role_must_be_the_layers() -> None:
    recipe, _ = recipe_with("decoders.{i}@mlp.up")
    loaded = load(load_spec("qwen3"), load_deployment("unsharded"), "ge_graph", "tiny")
    (problem,) = resolve(recipe, loaded, trace(loaded)).problems
    assert "names no decoder layer" in problem.message and "layers.{i}@mlp.up" in problem.message


def test_a_scope_for_any_model() -> None:
    recipe, problems = generic("decoder_scope")
    assert problems == [] and recipe.generic
    loaded = load(load_spec("deepseek_v3"), load_deployment("unsharded"), "ge_graph", "tiny")
    result = resolve(recipe, loaded, trace(loaded))
    assert errors(result) == []
    assert [(s.first, s.last) for s in result.plan.scopes] == [("model.layers.0", "model.layers.2")]


@pytest.mark.parametrize(
    ("strategy", "found"),
    [("attention", ["0.self_attn", "1.self_attn"]), ("moe", ["0.mlp", "1.mlp"]), ("decoder_layers", ["0"])],
)
def test_strategies_where_no_fused_kernel_shows_what_a_module_is(strategy: str, found: list[str]) -> None:
    loaded = load(load_spec("qwen3_moe"), load_deployment("unsharded"), "ge_graph", "tiny")
    step = trace(loaded)
    step = replace(step, kernels=tuple(replace(k, op="MatMul") for k in step.kernels))
    data = {"name": "t", "superkernel": {"enabled": True, "strategy": strategy}}
    scopes = resolve(parse_recipe(data)[0], loaded, step).plan.scopes
    assert [s.first.removeprefix("model.layers.") for s in scopes][:2] == found


def test_a_mixture_strategy_on_a_dense_model_covers_nothing() -> None:
    loaded = load(load_spec("qwen3"), load_deployment("unsharded"), "ge_graph", "tiny")
    data = {"name": "t", "superkernel": {"enabled": True, "strategy": "moe"}}
    assert errors(resolve(parse_recipe(data)[0], loaded, trace(loaded))) == ["no-match"]


def test_a_custom_scope_from_role_to_role() -> None:
    data = {
        "name": "t",
        "superkernel": {
            "enabled": True,
            "strategy": "custom",
            "scopes": {"half": {"first": "layers.{i}@mixer", "last": "layers.{i}@norm.feed_forward"}},
        },
    }
    recipe, problems = parse_recipe(data)
    assert problems == []
    loaded = load(load_spec("qwen3"), load_deployment("unsharded"), "ge_graph", "tiny")
    scopes = resolve(recipe, loaded, trace(loaded)).plan.scopes
    assert [(s.label, s.first, s.last) for s in scopes][1] == (
        "half_1",
        "model.layers.1.self_attn",
        "model.layers.1.post_attention_layernorm",
    )
