"""The diff is written on the tiny model; what it does at full size has to be what is planned there."""

from dataclasses import replace
from typing import Any

import pytest

from models.loading import load, load_deployment, load_spec
from models.trace import trace
from pipeline.compose import CONF
from pipeline.full_size import first_difference, full_size_problems, unseen_neighbours
from pipeline.recipe import Recipe, parse_recipe
from pipeline.resolve import resolve
from transforms.source import rewrite

# State space, state space, attention, state space: at full size three of four pairs of neighbours are of those kinds.
CONFIG = {"num_hidden_layers": 4, "attn_layer_indices": [2]}
ONE_OF_EACH = {"num_hidden_layers": 2, "attn_layer_indices": [1]}


def models(tiny: dict[str, Any]) -> tuple[Any, Any]:
    spec = load_spec("hf/bamba")
    spec = replace(spec, config={**spec.config, **CONFIG}, tiny={**spec.tiny, **tiny})
    deployment = load_deployment("unsharded")
    return load(spec, deployment, "ge_graph", "full"), load(spec, deployment, "ge_graph", "tiny")


def attention_recipe() -> Recipe:
    from ruamel.yaml import YAML

    return parse_recipe(YAML(typ="safe").load((CONF / "recipe" / "generic" / "attention.yaml").read_text()))[0]


def problems_of(tiny_values: dict[str, Any]) -> list[Any]:
    full, tiny = models(tiny_values)
    recipe = attention_recipe()
    planned = resolve(recipe, full, trace(full), exe_mode="ge_graph")
    plan = resolve(recipe, tiny, trace(tiny), sizes=planned.sizes, exe_mode="ge_graph").plan
    return full_size_problems(full, tiny, planned.plan, plan, rewrite(tiny, plan))


def test_a_tiny_model_with_every_pair_of_neighbours_needs_no_other_run() -> None:
    full, tiny = models({})
    assert not unseen_neighbours(full, tiny)
    assert problems_of({}) == []


def test_a_call_that_only_the_full_model_has_is_missed() -> None:
    full, tiny = models(ONE_OF_EACH)
    assert unseen_neighbours(full, tiny)
    (problem,) = problems_of(ONE_OF_EACH)
    assert problem.code == "not-at-full-size"
    assert "model.layers.1.mamba.in_proj.weight" in problem.message
    assert "transform=wrap" in problem.fix


@pytest.mark.parametrize(
    ("planned", "called", "words"),
    [
        (["a", "b"], ["a", "b"], None),
        (["a", "b"], ["b", "a"], "call 1 copies b instead of a"),
        (["a", "b"], ["a"], "no call copies b"),
        (["a"], ["a", "b"], "b is copied without being planned"),
    ],
)
def test_the_first_difference_is_told(planned: list[str], called: list[str], words: str | None) -> None:
    found = first_difference(planned, called)
    assert found is None if words is None else found is not None and found.startswith(words)


def test_a_weight_without_its_role_at_full_size_is_not_copied_there_unplanned() -> None:
    full, tiny = models({})
    recipe = attention_recipe()
    planned = resolve(recipe, full, trace(full), exe_mode="ge_graph")
    plan = resolve(recipe, tiny, trace(tiny), sizes=planned.sizes, exe_mode="ge_graph").plan
    fewer = replace(planned.plan, prefetch=tuple(p for p in planned.plan.prefetch if p.target != "out"))
    (problem,) = full_size_problems(full, tiny, fewer, plan, rewrite(tiny, plan))
    assert "mamba.out_proj.weight" in problem.message
