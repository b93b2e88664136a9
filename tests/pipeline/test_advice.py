"""Warnings about legal plans: each is told when it holds, and not told when it does not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from models.problems import Problem
from models.workload import Workload
from pipeline.advice import Limits, advise
from pipeline.recipe import parse_recipe
from pipeline.resolve import resolve
from pipeline.target_resolver import TargetResolver
from tests.pipeline.toy import change_kernels, model_and_step

MODEL, STEP = model_and_step()
GATE_UP = {"weight": "layers.{i}.mlp.gate_up", "dependency": "layers.{i}.self_attn.o_proj"}
DOWN = {"weight": "layers.{i}.mlp.down", "dependency": "layers.{i}.mlp.gate_up:input"}
ROOMY = Limits(l2_bytes=2e9, usable_l2=1e9, hbm=1e6, peaks={"bf16": 1e8})


def advice(
    targets: dict[str, Any],
    limits: Limits = ROOMY,
    step: Workload = STEP,
    ends: list[float] | None = None,
    cores_busy: int = 0,
) -> list[Problem]:
    recipe, problems = parse_recipe({"name": "t", "model": "toy", "prefetch": {"targets": targets}})
    assert problems == []
    result = resolve(recipe, MODEL, step)
    assert result.problems == ()
    report = recipe.reporter()
    resolver = TargetResolver(recipe, MODEL, step, report, None)
    baseline: Any = SimpleNamespace(starts=ends, ends=ends, rules={"cores_busy": cores_busy}) if ends else None
    advise(report, result.plan, result.placements, resolver.flow, resolver.names, limits, baseline, result.in_flight)
    return report.problems


def test_a_good_plan_gets_no_warning() -> None:
    assert advice({"gate_up": GATE_UP, "down": DOWN}) == []


def test_more_in_flight_than_l2_can_hold() -> None:
    (problem,) = advice(
        {"gate_up": {**GATE_UP, "dependency": "layers.{i}.post_norm"}}, replace(ROOMY, usable_l2=20_000)
    )
    assert (problem.severity, problem.code, problem.key) == ("warning", "l2-in-flight", "recipe.prefetch.coefficient")
    assert "24 KiB are copied" in problem.message
    assert "modelled" in problem.message


@pytest.mark.parametrize(("flops", "told"), [(0.0, False), (4.9e6, False), (5.1e6, True)])
def test_a_target_that_computes_longer_than_it_reads(flops: float, told: bool) -> None:
    # gate_up reads 49152 + 256 bytes at 1e6 bytes/us: 0.0494 us; at 1e8 operations/us that is 4.94e6 operations.
    kernels = tuple(replace(k, flops=flops) if k.module.endswith("gate_up") else k for k in STEP.kernels)
    problems = advice({"gate_up": GATE_UP}, step=replace(STEP, kernels=kernels))
    assert [(p.code, p.key) for p in problems] == (
        [("not-memory-bound", "recipe.prefetch.targets.gate_up.weight")] if told else []
    )


def test_an_unknown_dtype_is_not_judged() -> None:
    assert advice({"d": DOWN}, step=change_kernels(STEP, "QuantBatchMatmul", flops=1e12, flops_dtype="fp8")) == []


def test_a_copy_that_must_be_pushed_out_before_its_use_names_a_later_dependency() -> None:
    # The experts (two stacks, 295 KB) pass between o_proj and gate_up in program order... and after the norm too;
    # so nothing later helps gate_up, but down can wait for gate_up's output.
    limits = replace(ROOMY, usable_l2=60_000)
    problems = {p.key: p for p in advice({"down": DOWN}, limits)}
    problem = problems["recipe.prefetch.targets.down.dependency"]
    assert problem.code == "dependency-early"
    assert "pass through L2" in problem.message
    assert "`layers.{i}.mlp.gate_up`" in problem.fix


def test_nothing_is_said_where_no_later_dependency_would_help() -> None:
    # The activation is the last thing before down, and what passes after it does not fit either.
    at_the_end = {"weight": "layers.{i}.mlp.down", "dependency": "layers.{i}.mlp.act"}
    assert [p.code for p in advice({"down": at_the_end}, replace(ROOMY, usable_l2=3000))] == ["l2-in-flight"]


def test_a_dependency_two_layers_before_its_target() -> None:
    far = {"weight": "layers.{i+2}.self_attn.q_a", "dependency": "layers.{i}.mlp.down"}
    (problem,) = advice({"far": far})
    assert problem.code == "dependency-early"
    assert "2 layers before" in problem.message
    near = {"weight": "layers.{i+1}.self_attn.q_a", "dependency": "layers.{i}.mlp.down"}
    assert advice({"near": near}) == []


def test_a_copy_that_waits_behind_one_whose_dependency_is_ready_later() -> None:
    experts = {"weight": "layers.{i}.moe.experts.w2_weight", "dependency": "layers.{i}.moe.router"}
    ends = [float(k.index) for k in STEP.kernels]
    assert advice({"w2": experts, "down": {**DOWN, "dependency": "layers.{i}.mlp.gate_up"}}, ends=ends) == []
    router = [k.index for k in STEP.kernels if k.module.endswith("router")]
    for index in router:
        ends[index] += 50.0
    problems = advice({"w2": experts, "down": {**DOWN, "dependency": "layers.{i}.mlp.gate_up"}}, ends=ends)
    assert ("source-order", "recipe.prefetch.targets.down.dependency") in [(p.code, p.key) for p in problems]
    assert "call comes after that of `w2`" in problems[0].message
    assert "us later (modelled)" in problems[0].message


@pytest.mark.parametrize("waiting", [0, 3])
def test_streams_that_wait_for_each_others_cores(waiting: int) -> None:
    ends = [float(k.index) for k in STEP.kernels]
    problems = [p for p in advice({"gate_up": GATE_UP}, ends=ends, cores_busy=waiting) if p.code == "cores-not-shared"]
    assert [p.key for p in problems] == ["deployment.core_limits"] * (waiting > 0)
    assert all("3 kernels" in p.message and "modelled" in p.message for p in problems)
