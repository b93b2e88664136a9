"""The committed recipes on the real, full-size models: what they match, and the spec's sizes."""

import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from models.loading import LoadedModel, load, load_deployment, load_spec
from models.problems import Problem
from models.trace import trace
from models.workload import Workload
from pipeline.recipe import parse_recipe
from pipeline.resolve import Resolution, resolve
from pipeline.simulator.machine import Machine
from pipeline.windows import copies_of, placements_of, windows
from pipeline.yaml_source import YamlSource

CONF = Path(__file__).parents[2] / "conf"
RECIPES = sorted(str(p.relative_to(CONF / "recipe").with_suffix("")) for p in (CONF / "recipe").rglob("*.yaml"))
MIB = 2**20
LONGCAT, FFN, QWEN = "longcat_flash/decode_prefetch", "longcat_flash/decode_prefetch_ffn", "qwen3/decode_prefetch"


@cache
def model(
    name: str, deployment: str, size: str = "full", role: str = "", **config: Any
) -> tuple[LoadedModel, Workload]:
    """Full or tiny model with its step; `role` replaces the deployment's."""
    served = load_deployment(deployment, **({"role": role} if role else {}))
    loaded = load(load_spec(name, **config), served, "ge_graph", size)  # type: ignore[arg-type]
    return loaded, trace(loaded)


def recipe_data(name: str) -> Any:
    """The recipe's mapping; one that inherits gives only what differs from its parent."""
    own: Any = OmegaConf.to_container(OmegaConf.load(CONF / "recipe" / f"{name}.yaml"))
    parents = [entry for entry in own.pop("defaults", []) if entry != "_self_"]
    inherited = [recipe_data(entry.removeprefix("/recipe/").partition("@")[0]) for entry in parents]
    return OmegaConf.to_container(OmegaConf.merge(*inherited, own))


def resolved(
    name: str,
    deployment: str | None = None,
    config: tuple[tuple[str, Any], ...] = (),
    coefficient: float | None = None,
    machine: Machine | None = None,
    **target: Any,
) -> Resolution:
    data = recipe_data(name)
    if coefficient is not None:
        data["prefetch"]["coefficient"] = coefficient
    for key, value in target.items():
        data["prefetch"]["targets"][key] |= value
    recipe, problems = parse_recipe(data, YamlSource(CONF / "recipe" / f"{name}.yaml"))
    assert problems == []
    loaded, workload = model(data["model"], deployment or data["deployment"], **dict(config))
    return resolve(recipe, loaded, workload, machine)


def sizes(result: Resolution) -> dict[str, tuple[int, float]]:
    """Last part of the weight's module -> (entries, MiB each)."""
    found: dict[str, list[int]] = {}
    for entry in result.plan.prefetch:
        found.setdefault(entry.weight.removesuffix(".weight").rpartition(".")[2], []).append(entry.max_size)
    assert all(len(set(each)) == 1 for each in found.values())
    return {name: (len(each), each[0] / MIB) for name, each in found.items()}


def errors(problems: Any) -> list[Problem]:
    return [p for p in problems if p.severity == "error"]


@pytest.mark.parametrize("name", RECIPES)
def test_every_committed_recipe_reads_cleanly_and_says_how_to_run_it(name: str) -> None:
    data = recipe_data(name)
    recipe, problems = parse_recipe(data)
    assert problems == []
    assert recipe.name == name
    assert all(t.max_size is None for t in recipe.prefetch.targets), "committed recipes size by coefficient"
    header = (CONF / "recipe" / f"{name}.yaml").read_text().split("name:")[0]
    assert f"recipe={name}" in header
    for group in ("model", "deployment", "hardware", "runtime"):
        if group == "model" and recipe.generic:
            continue
        assert (CONF / group / f"{data[group]}.yaml").is_file(), f"{group} {data[group]}"


@pytest.mark.parametrize("name", [n for n in RECIPES if not n.startswith("generic/")])
def test_every_committed_recipe_resolves_on_its_own_deployment_full_and_tiny(name: str) -> None:
    result = resolved(name)
    assert errors(result.problems) == []
    assert all(m.matched for m in result.matches)
    data = recipe_data(name)
    tiny, step = model(data["model"], data["deployment"], "tiny")
    small = resolve(parse_recipe(data)[0], tiny, step, sizes=result.sizes)
    assert small.problems == ()
    assert {p.target for p in small.plan.prefetch} == {p.target for p in result.plan.prefetch}
    by_target = {p.target: (p.theoretical_size, p.max_size) for p in result.plan.prefetch}
    assert all((p.theoretical_size, p.max_size) == by_target[p.target] for p in small.plan.prefetch)


def test_the_sizes_of_the_spec_come_out_of_the_models_dimensions() -> None:
    result = resolved(LONGCAT, "unsharded", coefficient=1.0)
    assert sizes(result) == {
        "classifier": (28, 18.0),
        "q_a_proj": (55, 18.0),
        "q_b_proj": (55, 36.0),
        "kv_a_proj_with_mqa": (55, 6.75),
        "gate_up_proj": (56, 288.0),
        "down_proj": (56, 144.0),
    }
    assert len(result.plan.prefetch) == 305
    assert [(m.target, m.skipped) for m in result.matches if m.skipped] == [
        ("q_a_next", 1),
        ("q_b_next", 1),
        ("kv_a_next", 1),
    ]


def test_another_hidden_size_changes_the_sizes_that_depend_on_it() -> None:
    found = sizes(resolved(LONGCAT, "unsharded", (("hidden_size", 4096),), coefficient=1.0))
    names = ("classifier", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa")
    assert [found[n][1] for n in names] == [12.0, 12.0, 36.0, 4.5]


def test_sharded_and_quantised_as_served() -> None:
    found = sizes(resolved(LONGCAT, coefficient=1.0))
    assert {n: m for n, (_, m) in found.items()} == {
        "classifier": 18.0,
        "q_a_proj": 18.0,
        "q_b_proj": 36.0,
        "kv_a_proj_with_mqa": 6.75,
        "gate_up_proj": 18.0,
        "down_proj": 9.0,
    }


def test_the_expert_sizes_are_the_specs_gmm_formulas() -> None:
    config = load_spec("longcat_flash").config
    hidden, inner, local = config["hidden_size"], config["expert_ffn_hidden_size"], config["n_routed_experts"] // 32
    by_target = {m.target: m.max_size for m in resolved(FFN).matches}
    assert by_target["w13_next"] == hidden * inner * 2 * 1 // 1 * local // 2
    assert by_target["w2"] == hidden * inner * 1 // 1 * local


def test_the_last_mla_weights_wait_for_the_reference_codes_dependency() -> None:
    plan = resolved(LONGCAT).plan
    entry = next(p for p in plan.prefetch if p.target == "q_a_1")
    assert (entry.dependency, entry.port) == ("model.layers.0.mlps.0.gate_up_proj", "output")
    first_layer = [p.target for p in plan.prefetch if p.layer == 0]
    assert first_layer == [
        "router",
        "gate_up_0",
        "down_0",
        "q_a_1",
        "q_b_1",
        "kv_a_1",
        "gate_up_1",
        "down_1",
        "q_a_next",
        "q_b_next",
        "kv_a_next",
    ]


def test_a_dependency_that_goes_into_mla_prolog_is_never_called() -> None:
    result = resolved(LONGCAT, gate_up_1={"dependency": "layers.{i}.self_attn.1.q_a_proj"})
    (problem,) = errors(result.problems)
    assert (problem.code, problem.key) == ("never-called", "recipe.prefetch.targets.gate_up_1.dependency")
    assert "its weight goes into MLAProlog" in problem.message
    assert "`layers.{i}.self_attn.1.o_proj`" in problem.fix


def test_the_shortcut_branch_is_another_branch() -> None:
    result = resolved(LONGCAT, down_0={"dependency": "layers.{i}.mlp.router.classifier"})
    (problem,) = errors(result.problems)
    assert problem.code == "dependency-in-another-branch"


def test_norms_and_rope_of_the_real_model_are_no_targets() -> None:
    for path in ("layers.{i}.input_layernorm.0", "layers.{i}.self_attn.0.q_a_layernorm", "rotary_emb", "norm"):
        result = resolved(LONGCAT, router={"weight": path})
        problem = errors(result.problems)[0]
        assert problem.code == "not-a-target", (path, problem)


def test_the_other_sides_recipe_is_refused_on_the_ffn_side_and_a_typo_stays_a_typo() -> None:
    result = resolved(LONGCAT, "longcat_a3_ep32_ffn")
    assert {p.code for p in result.problems if p.severity == "warning"} == {"role-skipped"}
    assert [p.code for p in errors(result.problems)] == ["nothing-left"]
    result = resolved(LONGCAT, "longcat_a3_ep32_ffn", router={"weight": "layers.{i}.mlp.ruoter.classifier"})
    assert "no-match" in [p.code for p in errors(result.problems)]


def test_the_attention_side_keeps_everything_but_the_router() -> None:
    loaded, step = model("longcat_flash", "longcat_a3_ep128", role="attention")
    result = resolve(parse_recipe(recipe_data(LONGCAT))[0], loaded, step)
    assert [(p.severity, p.code, p.key) for p in result.problems] == [
        ("warning", "role-skipped", "recipe.prefetch.targets.router.weight")
    ]
    assert len(result.plan.prefetch) == 305 - 28


def test_windows_shares_and_copies_with_a_machine() -> None:
    machine = Machine.from_mapping(OmegaConf.to_container(OmegaConf.load(CONF / "hardware" / "atlas_a3.yaml")))  # type: ignore[arg-type]
    result = resolved(LONGCAT, machine=machine)
    _, workload = model("longcat_flash", "longcat_a3_ep128")
    assert errors(result.problems) == []
    for row in result.matches:
        assert row.window is not None
        assert row.window.provenance == "modelled"
        assert 0 < row.window.value < 1000
        assert row.l2_share == row.max_size / machine.l2_bytes
    copies = copies_of(result.plan, workload)
    assert [c.size for c in copies] == [p.max_size for p in result.plan.prefetch]
    assert placements_of(result.plan, workload) == list(result.placements)

    from pipeline.simulator.simulate import simulate

    each = windows(result.plan, workload, simulate(workload, copies, machine.nominal()))
    assert len(each) == 305
    assert min(each) > 0


def test_the_dense_recipe_hides_behind_what_leaves_hbm_free_and_does_not_cost_by_itself() -> None:
    from pipeline.simulator import Baseline

    machine = Machine.from_mapping(OmegaConf.to_container(OmegaConf.load(CONF / "hardware" / "atlas_a2.yaml")))  # type: ignore[arg-type]
    result = resolved(QWEN, machine=machine)
    assert result.problems == ()
    assert [m.matched for m in result.matches] == [36, 36, 35]
    assert [m.crosses for m in result.matches] == [("AddRmsNorm",), ("SwiGLU",), ("AddRmsNorm",)]
    _, workload = model("qwen3", "qwen3_a2_tp1")
    gain = Baseline(workload, machine.for_mode("ge_graph"), 64, 0).forecast(copies_of(result.plan, workload)).gain
    assert gain.value > 0 and gain.high is not None and gain.high > 0


def test_a_coefficient_of_the_command_line_does_not_move_a_target_with_its_own() -> None:
    data = recipe_data(FFN)
    loaded, step = model(data["model"], data["deployment"])

    def said(**overrides: Any) -> list[Problem]:
        data["prefetch"] |= overrides
        recipe, problems = parse_recipe(data, YamlSource(CONF / "recipe" / f"{FFN}.yaml"))
        assert problems == []
        return [p for p in resolve(recipe, loaded, step).problems if p.code == "coefficient-not-reached"]

    assert said() == said(coefficient=0.5) == []
    (warning,) = said(coefficient=0.7)
    assert (warning.severity, warning.key, warning.file) == ("warning", "recipe.prefetch.coefficient", None)
    assert "`w2` (1.0)" in warning.message and "w13" not in warning.message
    assert "recipe.prefetch.targets.w2.coefficient=${recipe.prefetch.coefficient}" in warning.fix
    assert said(only=["w13_next"]) == []
    data["prefetch"]["targets"]["w2"]["coefficient"] = 0.7
    assert said(only=None) == []


def test_resolving_the_full_plan_takes_less_than_half_a_second() -> None:
    resolved(LONGCAT)
    start = time.perf_counter()
    resolved(LONGCAT)
    assert time.perf_counter() - start < 0.5
