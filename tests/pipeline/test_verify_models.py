"""The rungs on the real parts: a tiny LongCat-Flash, its plan, both realisations, and plans that are not theirs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from torch import nn

from models.deployment import Deployment
from models.loading import LoadedModel, ModelSpec, load
from models.trace import trace
from pipeline.recipe import parse_recipe
from pipeline.resolve import resolve
from pipeline.verify import Build, baseline_run, check_compiles, check_numerics
from transforms.plan import Plan
from transforms.prefetch_source import load_rewritten, prefetch_source
from transforms.prefetch_wrap import prefetch_wrap

CONF = Path(__file__).parents[2] / "conf"


def configured(group: str, name: str) -> dict[str, Any]:
    return {"name": name, **YAML(typ="safe").load((CONF / group / f"{name}.yaml").read_text())}


@dataclass
class Case:
    loaded: LoadedModel
    plan: Plan
    source: Build
    wrap: Build
    text: str


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    spec = ModelSpec.from_mapping(configured("model", "longcat_flash"))
    deployment = Deployment.from_mapping(configured("deployment", "longcat_a3_ep128"))
    loaded = load(spec, deployment, "ge_graph", "tiny")
    recipe, problems = parse_recipe(configured("recipe", "longcat_flash/decode_prefetch"), None)
    found = resolve(recipe, loaded, trace(loaded), exe_mode="ge_graph")
    assert not [p for p in (*problems, *found.problems) if p.severity == "error"]
    result = prefetch_source(loaded, found.plan)
    rewritten = load_rewritten(loaded, result, tmp_path_factory.mktemp("transformed"))

    def source(switch: bool) -> nn.Module:
        return loaded.rebuild(rewritten, enable_prefetch=switch)

    @contextmanager
    def wrap(switch: bool) -> Iterator[nn.Module]:
        if not switch:
            yield loaded.module
            return
        wrapped = prefetch_wrap(loaded, found.plan)
        try:
            yield loaded.module
        finally:
            wrapped.undo()

    return Case(loaded, found.plan, source, wrap, result.after)


@pytest.mark.parametrize("realisation", ["source", "wrap"])
def test_both_realisations_pass(case: Case, realisation: str) -> None:
    build = getattr(case, realisation)
    assert check_compiles(case.loaded, build, {"m.py": case.text}).status == "passed"
    rung, planned, observed, *_ = check_numerics(case.loaded, case.plan, build)
    assert rung.status == "passed", rung.detail
    assert planned == observed == len(case.plan.prefetch) > 20


def other_weight(plan: Plan) -> Plan:
    first, second, *rest = plan.prefetch
    return replace(plan, prefetch=(replace(first, weight=second.weight), second, *rest))


def other_dependency(plan: Plan) -> Plan:
    *rest, last = plan.prefetch
    return replace(plan, prefetch=(*rest, replace(last, dependency=plan.prefetch[0].dependency)))


def other_order(plan: Plan) -> Plan:
    first, second, *rest = plan.prefetch
    return replace(plan, prefetch=(second, first, *rest))


def fewer(plan: Plan) -> Plan:
    return replace(plan, prefetch=plan.prefetch[:-1])


def other_size(plan: Plan) -> Plan:
    first, *rest = plan.prefetch
    return replace(plan, prefetch=(replace(first, max_size=first.max_size + 1), *rest))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_weight, "call 1 of {n} (router): weight: planned"),
        (other_dependency, "call {n} of {n} ({last}): dependency: planned"),
        (other_order, "this call is planned at position 2"),
        (fewer, "prefetch calls, {n} are planned; the first that is too many"),
        (other_size, "call 1 of {n} (router): max_size: planned"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_model_that_does_not_do_what_was_planned_fails(case: Case, change: Any, words: str) -> None:
    plan = change(case.plan)
    rung, *_ = check_numerics(case.loaded, plan, case.source, baseline_run(case.loaded))
    assert rung.status == "failed"
    assert words.format(n=len(plan.prefetch), last=plan.prefetch[-1].target) in rung.detail, rung.detail


def test_the_unmodified_model_fails(case: Case) -> None:
    rung, _, observed, *_ = check_numerics(case.loaded, case.plan, lambda switch: case.loaded.module)
    assert rung.status == "failed" and observed == 0 and "no prefetch call was observed" in rung.detail
