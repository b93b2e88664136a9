"""The diff, and the hooks, copy of every weight what the plan at full size says."""

import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from models.loading import load, load_deployment, load_spec
from models.paths import Names
from models.trace import trace
from pipeline.full_size import full_size_problems
from pipeline.planned_sizes import PlannedSizes
from pipeline.recipe import Recipe, parse_recipe
from pipeline.resolve import Resolution, resolve
from transforms.plan import Plan
from transforms.prefetch_wrap import prefetch_wrap
from transforms.source import rewrite

pytest.importorskip("transformers")

# Eight heads share two of keys and values: q_proj is four times k_proj.
GROUPED = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
TARGETS = {
    "next": {"weight": "layers.{i+1}@attention.in", "dependency": "layers.{i}@feed_forward"},
    "star": {"weight": "layers.{i+1}.self_attn.*", "dependency": "layers.{i}@feed_forward"},
}


def recipe_of(targets: dict[str, Any], **prefetch: Any) -> Recipe:
    recipe, problems = parse_recipe(
        {"name": "t", "model": "hf/any", "prefetch": {"coefficient": 0.5, "targets": targets, **prefetch}}
    )
    assert problems == []
    return replace(recipe, model="")


@cache
def models(name: str, config: tuple[tuple[str, Any], ...]) -> tuple[Any, Any]:
    spec = load_spec(f"hf/{name}")
    spec = replace(spec, config={**spec.config, **dict(config)})
    deployment = load_deployment("unsharded")
    return load(spec, deployment, "ge_graph", "full"), load(spec, deployment, "ge_graph", "tiny")


def resolved(recipe: Recipe, full: Any, tiny: Any) -> tuple[Resolution, Resolution]:
    planned = resolve(recipe, full, trace(full), exe_mode="ge_graph")
    small = resolve(recipe, tiny, trace(tiny), sizes=planned.sizes, exe_mode="ge_graph")
    assert [p for p in (*planned.problems, *small.problems) if p.severity == "error"] == []
    return planned, small


def sizes_of(plan: Plan) -> dict[tuple[str, str], set[int]]:
    """(target, weight in its layer) -> bytes."""
    found: dict[tuple[str, str], set[int]] = {}
    for p in plan.prefetch:
        found.setdefault((p.target, p.weight.split("layers.")[1].partition(".")[2]), set()).add(p.max_size)
    return found


def literals(diff: str) -> dict[str, int]:
    """Last two names of the weight -> bytes, of the calls that a diff adds."""
    added = "".join(line[1:] for line in diff.splitlines() if line.startswith("+")).replace(" ", "")
    calls = re.findall(r"npu_prefetch\(\w+,([\w.]+),\w+,([\d*]+)", added)
    return {weight.split(".")[-2]: math.prod(map(int, size.split("*"))) for weight, size in calls}


LLAMA = tuple({**GROUPED, "head_dim": 64, "num_hidden_layers": 4}.items())
Q, KV = 256 * 512, 256 * 128  # half of 2 bytes an element
OWN = {"q_proj": Q, "k_proj": KV, "v_proj": KV}


@pytest.mark.parametrize(
    ("target", "wanted"),
    [("next", OWN), ("star", {**OWN, "o_proj": Q})],
)
def test_each_of_several_weights_of_a_target_has_its_own_bytes(target: str, wanted: dict[str, int]) -> None:
    full, tiny = models("llama", LLAMA)
    planned, small = resolved(recipe_of({target: TARGETS[target]}), full, tiny)
    sizes = {weight.split(".")[-2]: size for (_, weight), size in sizes_of(planned.plan).items()}
    assert sizes == {name: {size} for name, size in wanted.items()}
    assert sizes_of(small.plan) == sizes_of(planned.plan)
    source = rewrite(tiny, small.plan)
    assert literals(source.diff) == wanted
    assert full_size_problems(full, tiny, planned.plan, small.plan, source) == []


def test_the_hooks_copy_what_is_planned_at_either_size(monkeypatch: pytest.MonkeyPatch) -> None:
    full, tiny = models("llama", LLAMA)
    full.past()  # it runs the model itself, when it is first asked for
    for loaded, resolution in zip(
        (full, tiny), resolved(recipe_of({"next": TARGETS["next"]}), full, tiny), strict=True
    ):
        names = {id(p): name for name, p in loaded.module.named_parameters()}
        calls: list[tuple[str, int]] = []

        def note(enabled: bool, weight: Any, dependency: Any, max_size: int, offset: int) -> None:
            calls.append((names[id(weight)], max_size))  # noqa: B023

        monkeypatch.setattr("transforms.prefetch_wrap.npu_prefetch", note)
        with prefetch_wrap(loaded, resolution.plan):
            loaded.decode_once()
        assert calls == [(p.weight, p.max_size) for p in resolution.plan.prefetch]
        assert {size for _, size in calls} == {Q, KV}


# One layer in six has wider heads: one path, two sizes, and `is_sliding` tells them apart.
OUT = {"out": {"weight": "layers.{i}@attention.out", "dependency": "layers.{i}@attention.in"}}
O_PROJ = ("out", "self_attn.o_proj.weight")


def test_layers_of_a_kind_have_their_own_bytes() -> None:
    full, tiny = models("gemma4_text", ())
    planned, small = resolved(recipe_of(OUT), full, tiny)
    sizes = sizes_of(planned.plan)[O_PROJ]
    assert len(sizes) == 2 and sizes_of(small.plan)[O_PROJ] == sizes
    assert full_size_problems(full, tiny, planned.plan, small.plan, rewrite(tiny, small.plan)) == []


def test_a_diff_that_copies_other_bytes_at_full_size_is_refused() -> None:
    full, tiny = models("gemma4_text", ())
    planned, small = resolved(recipe_of(OUT), full, tiny)
    less, more = sorted(sizes_of(planned.plan)[O_PROJ])
    swapped = tuple(replace(p, max_size=less + more - p.max_size) for p in small.plan.prefetch)
    wrong = replace(small.plan, prefetch=swapped)
    (problem,) = full_size_problems(full, tiny, planned.plan, wrong, rewrite(tiny, wrong))
    assert problem.code == "not-at-full-size"
    call = "call 1 copies {} bytes of model.layers.0.self_attn.o_proj.weight instead of {} bytes"
    assert call.format(more, less) in problem.message


def test_layers_that_nothing_tells_apart_are_refused_for_source_only() -> None:
    full, tiny = models("llama", LLAMA)
    planned, _ = resolved(recipe_of({"next": TARGETS["next"]}), full, tiny)
    uneven = tuple(replace(p, max_size=p.max_size // 2) if p.layer == 2 else p for p in planned.plan.prefetch)
    small = resolve(
        recipe_of({"next": TARGETS["next"]}),
        tiny,
        trace(tiny),
        sizes=PlannedSizes.of(Names(full.module, full.root, full.layers), uneven),
        exe_mode="ge_graph",
    )
    assert sizes_of(small.plan) == sizes_of(planned.plan)  # the largest
    plan = replace(planned.plan, prefetch=uneven)
    (problem,) = full_size_problems(full, tiny, plan, small.plan, rewrite(tiny, small.plan))
    assert (problem.code, problem.key) == ("not-at-full-size", "recipe.prefetch.targets.next.weight")
    assert f"{Q // 2} and {Q} bytes of model.layers.#.self_attn.q_proj.weight" in problem.message
    assert "transform=wrap" in problem.fix and f"max_size of {Q // 2} bytes" in problem.fix
