"""The committed recipes with both levers, on their real models with few layers."""

import pytest

from models.loading import load
from models.paths import Names
from models.problems import RefusedError
from models.trace import trace
from pipeline.compose import CONF, compose_grid
from pipeline.experiment import Prepared, build_experiment, prepare
from pipeline.overrides import read_overrides
from pipeline.preconditions import Places
from pipeline.resolve import Resolution, resolve
from pipeline.scope_spans import Calls
from pipeline.scope_strategies import chains


def resolved(*words: str) -> tuple[Resolution, Names, Calls]:
    overrides, problems = read_overrides(words)
    assert not problems
    (point,) = compose_grid(overrides, False, (CONF,))
    experiment = build_experiment(point.config, point.sources())
    loaded = load(experiment.model, experiment.deployment, experiment.exe_mode, "full")
    step = trace(loaded)
    places = Places(experiment.config, experiment.files)
    result = resolve(experiment.recipe, loaded, step, experiment.machine, exe_mode=experiment.exe_mode, places=places)
    return result, Names(loaded.module, loaded.root, loaded.layers), Calls(step)


LONGCAT = ("recipe=longcat_flash/decode_full", "model.config.num_layers=3")
DEEPSEEK = ("recipe=deepseek_v3/decode_full", "model.config.num_hidden_layers=5")
QWEN = ("recipe=qwen3_moe/decode_full", "model.config.num_hidden_layers=3")


def errors(result: Resolution) -> list[str]:
    return [p.code for p in result.problems if p.severity == "error"]


def test_longcat_has_the_three_scopes_of_the_reference_which_are_the_longest_chains() -> None:
    result, names, calls = resolved(*LONGCAT)
    assert errors(result) == []
    assert [s.label for s in result.plan.scopes[:4]] == ["attention_0", "moe_0", "main_0", "attention_1"]
    found = [(s.first, s.last) for s in result.plan.scopes]
    assert found == [(p.first, p.last) for p in chains(names, calls)]
    assert len(result.plan.prefetch) > 0
    rows = {row.name: row for row in result.scope_matches}
    assert {name: row.kernels // 3 for name, row in rows.items()} == {"attention": 9, "moe": 8, "main": 21}
    assert not any(row.serialises for row in rows.values())
    assert [op for op, _, _ in rows["moe"].cut_by] == ["Cast"]


def test_deepseek_skips_its_dense_layers_where_there_are_no_experts() -> None:
    result, _, _ = resolved(*DEEPSEEK)
    assert errors(result) == []
    rows = {row.name: row for row in result.scope_matches}
    assert {name: (row.matched, row.skipped) for name, row in rows.items()} == {
        "attention": (5, 0),
        "shared": (2, 3),
        "routed": (2, 3),
    }
    assert rows["shared"].streams == ("shared_experts",)


def test_qwen_has_one_scope_over_the_loop() -> None:
    result, _, _ = resolved(*QWEN)
    assert errors(result) == []
    assert [(s.label, s.first, s.last) for s in result.plan.scopes] == [
        ("decoder_layers", "model.layers.0", "model.layers.2")
    ]


@pytest.mark.parametrize("strategy", ["attention", "moe", "decoder_layers", "auto"])
@pytest.mark.parametrize("recipe", [LONGCAT, DEEPSEEK, QWEN], ids=["longcat", "deepseek", "qwen"])
def test_every_strategy_resolves_on_every_model(recipe: tuple[str, ...], strategy: str) -> None:
    result, _, _ = resolved(*recipe, f"recipe.superkernel.strategy={strategy}")
    assert errors(result) == []
    assert result.plan.scopes and all(row.launches_saved for row in result.scope_matches)


def test_levers_can_be_switched_off_one_by_one() -> None:
    prefetch, _, _ = resolved(*LONGCAT, "recipe.superkernel.enabled=false")
    scopes, _, _ = resolved(*LONGCAT, "recipe.prefetch.enabled=false")
    assert prefetch.plan.prefetch and not prefetch.plan.scopes
    assert scopes.plan.scopes and not scopes.plan.prefetch and errors(scopes) == []


@pytest.mark.parametrize(
    ("word", "code", "key", "file"),
    [
        ("runtime=eager", "superkernel-mode", "runtime.exe_mode", "eager.yaml"),
        ("runtime=aclgraph", "superkernel-mode", "runtime.exe_mode", "aclgraph.yaml"),
        ("runtime=npugraph_ex", "superkernel-mode", "runtime.exe_mode", "npugraph_ex.yaml"),
        ("hardware=atlas_a2", "superkernel-generation", "hardware.generation", "atlas_a2.yaml"),
    ],
)
def test_a_setting_without_superkernel_is_refused_with_its_file_and_line(
    word: str, code: str, key: str, file: str
) -> None:
    result, _, _ = resolved(*LONGCAT, "recipe.prefetch.enabled=false", word)
    (problem,) = [p for p in result.problems if p.severity == "error"]
    assert (problem.code, problem.key) == (code, key)
    assert problem.file is not None and problem.file.endswith(file) and problem.line is not None


def test_a2_and_npugraph_ex_by_opt_in() -> None:
    allow = "recipe.superkernel.allow=[a2,npugraph_ex]"
    result, _, _ = resolved(*LONGCAT, "hardware=atlas_a2", "runtime=npugraph_ex", allow)
    assert errors(result) == []


def test_the_old_spelling_is_no_longer_known() -> None:
    overrides, _ = read_overrides([*LONGCAT, "recipe.superkernel.allow=[atlas_a2]"])
    (point,) = compose_grid(overrides, False, (CONF,))
    try:
        problems = build_experiment(point.config, point.sources()).problems
    except RefusedError as refused:
        problems = refused.problems
    assert "unknown-allowance" in [p.code for p in problems]


# --- layers picked by number --------------------------------------------------------------------------------------

ONLY_A = (
    *DEEPSEEK,  # 5 layers, 3 of them dense; the tiny model has 3, 1 of them dense
    "recipe.prefetch.enabled=false",
    "~recipe.superkernel.scopes.attention",
    "~recipe.superkernel.scopes.shared",
    "~recipe.superkernel.scopes.routed",
)


def prepared(*words: str) -> Prepared:
    overrides, problems = read_overrides(words)
    assert not problems
    (point,) = compose_grid(overrides, False, (CONF,))
    return prepare(build_experiment(point.config, point.sources()))


@pytest.mark.parametrize(
    "scope",
    [
        "first: 'layers.[3-4].self_attn'",  # the tiny model has none of them: the diff would be empty
        "first: 'layers.[0-2].self_attn'",  # all of the tiny model: the diff would be for all layers
        "first: 'layers.[0-2].mlp'",  # dense at full size, experts on the tiny model
        "first: layers.0, last: layers.4",  # the whole loop, but the tiny model ends before
        "first: layers.0, last: layers.2",
    ],
)
def test_layers_picked_by_number_can_not_be_written_as_source(scope: str) -> None:
    with pytest.raises(RefusedError) as refused:
        prepared(*ONLY_A, f"recipe.superkernel.scopes.a={{{scope}}}")
    errors = [p for p in refused.value.problems if p.severity == "error"]
    assert [(p.code, p.key) for p in errors] == [("picked-layers", "recipe.superkernel.scopes.a")]
    assert "transform=wrap" in errors[0].fix


def test_layers_picked_by_number_can_be_wrapped_and_what_the_tiny_model_lacks_is_told() -> None:
    scope = "recipe.superkernel.scopes.a={first: 'layers.[3-4].self_attn'}"
    found = prepared(*ONLY_A, scope, "transform=wrap")
    assert [s.label for s in found.resolution.plan.scopes] == ["a_3", "a_4"]
    assert "not-in-tiny" in {p.code for p in found.problems}


def test_all_layers_of_one_structure_may_be_named_by_number_or_wildcard() -> None:
    found = prepared(*ONLY_A, "recipe.superkernel.scopes.a={first: 'layers.*.self_attn'}")
    assert [s.label for s in found.resolution.plan.scopes] == [f"a_{i}" for i in range(5)]
    assert found.realisation is not None and found.realisation.source is not None
    assert 'f"a_{self.layer_idx}"' in found.realisation.source.after


def test_a_prefetch_picked_by_number_is_no_source_either() -> None:
    target = "{weight: 'layers.4.self_attn.o_proj', dependency: 'layers.4.input_layernorm'}"
    words = (*DEEPSEEK, "recipe.superkernel.enabled=false", "recipe.prefetch.only=[x]")
    with pytest.raises(RefusedError, match="picks 1 of 5 layers by number"):
        prepared(*words, f"recipe.prefetch.targets.x={target}")
