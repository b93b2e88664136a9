"""SuperKernel scopes of transformers models with `model.cache=static`: planned, written, and observed as planned."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from torch import nn

from models.loading import LoadedModel, load, load_deployment, load_spec
from models.trace import trace
from pipeline.graph_breaks import graph_breaks
from pipeline.recipe import parse_recipe
from pipeline.resolve import Resolution, resolve
from pipeline.verify import check_compiles, check_numerics
from pipeline.yaml_source import YamlSource
from transforms.source import load_rewritten, rewrite
from transforms.wrap import wrap

FILE = Path(__file__).parents[2] / "conf" / "recipe" / "generic" / "decoder_scope.yaml"


def resolved(model: str, cache: str | None, strategy: str = "decoder_layers") -> tuple[LoadedModel, Resolution]:
    data: Any = OmegaConf.to_container(OmegaConf.load(FILE))
    data["superkernel"]["strategy"] = strategy
    recipe, problems = parse_recipe(data, YamlSource(FILE))
    assert problems == []
    loaded = load(load_spec(model, cache=cache), load_deployment("unsharded"), "ge_graph", "tiny")
    return loaded, resolve(recipe, loaded, trace(loaded), exe_mode="ge_graph")


def errors(result: Resolution) -> list[tuple[str, str]]:
    return [(p.code, p.fix) for p in result.problems if p.severity == "error"]


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("hf/llama", "decoder_layers"),
        ("hf/llama", "attention"),
        ("hf/qwen3_moe", "decoder_layers"),
        ("hf/qwen3_moe", "moe"),
    ],
)
def test_scopes_observed_are_those_planned_as_source_and_as_wrap(model: str, strategy: str, tmp_path: Path) -> None:
    loaded, result = resolved(model, "static", strategy)
    assert errors(result) == [] and result.plan.scopes
    written = rewrite(loaded, result.plan)
    rewritten = load_rewritten(loaded, written, tmp_path)

    def source(switch: bool) -> nn.Module:
        return loaded.rebuild(rewritten, enable_superkernel=switch)

    @contextmanager
    def wrapped(switch: bool) -> Iterator[nn.Module]:
        if not switch:
            yield loaded.module
            return
        with wrap(loaded, result.plan) as module:
            yield module

    assert check_compiles(loaded, source, {"m.py": written.after}).status == "passed"
    for build in (source, wrapped):
        found = check_numerics(loaded, result.plan, build)
        assert found.rung.status == "passed", found.rung.detail
        assert found.scopes_observed == len(result.plan.scopes) > 0


@pytest.mark.parametrize("cache", [None, "dynamic"])
def test_a_cache_that_grows_is_refused_and_the_fix_names_the_static_one(cache: str | None) -> None:
    _, result = resolved("hf/llama", cache)
    [(code, fix)] = errors(result)
    assert code == "dynamic-kv-cache" and "model.cache=static" in fix


def test_experts_break_the_graph_only_where_the_loop_over_them_runs() -> None:
    loaded, _ = resolved("hf/qwen3_moe", "static")
    experts: list[Any] = [m for m in loaded.module.modules() if type(m).__name__ == "Qwen3MoeExperts"]
    assert experts and graph_breaks(experts) == []
    for module in experts:
        module.config._experts_implementation = "eager"
    [*found] = graph_breaks(experts)
    assert found and all("modeling_qwen3_moe" in b.file for b in found)
