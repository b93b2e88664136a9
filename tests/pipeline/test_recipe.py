"""Reading recipes: everything wrong is told at once, each with code, key, file, line and what to do."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from models.problems import Problem
from pipeline.recipe import Recipe, check_mode, check_model, parse_recipe
from pipeline.recipe_fields import parse_coefficient
from pipeline.yaml_source import YamlSource

ROUTER = {"weight": "layers.{i}.router", "dependency": "layers.{i}.o_proj"}


def recipe(**prefetch: Any) -> dict[str, Any]:
    return {"name": "t", "model": "toy", "prefetch": {"enabled": True, "targets": {"router": ROUTER}, **prefetch}}


def only_problem(data: Any) -> Problem:
    _, problems = parse_recipe(data)
    assert len(problems) == 1, "\n".join(map(str, problems))
    return problems[0]


def target(**keys: Any) -> Problem:
    return only_problem(recipe(targets={"router": {**ROUTER, **keys}}))


def test_a_good_recipe_has_no_problem_and_keeps_what_was_written() -> None:
    parsed, problems = parse_recipe(
        recipe(
            coefficient=0.7,
            only=["down"],
            targets={
                "router": ROUTER,
                "down": {
                    "weight": "layers.{i+1}.down",
                    "dependency": "layers.{i}.up:input",
                    "coefficient": 1,
                    "max_size": "18 MiB",
                    "offset": "1 KiB",
                    "in": "Model.forward",
                },
            },
        )
    )
    assert problems == []
    assert parsed.prefetch.coefficient == Decimal("0.7")
    router, down = parsed.prefetch.targets
    assert (router.port, router.coefficient, router.max_size, router.offset) == ("output", None, None, 0)
    assert (down.weight.text, down.dependency.text, down.port) == ("layers.{i+1}.down", "layers.{i}.up", "input")
    assert (down.coefficient, down.max_size, down.offset, down.method) == (1, 18 * 2**20, 1024, "Model.forward")
    assert parsed.prefetch.active == (down,)


def test_defaults_are_the_conservative_ones() -> None:
    parsed, problems = parse_recipe({"name": "t", "model": "toy"})
    assert problems == []
    assert not parsed.prefetch.active
    assert not parsed.superkernel.enabled
    parsed, _ = parse_recipe(recipe())
    assert parsed.prefetch.coefficient == Decimal("0.5")


@pytest.mark.parametrize(
    ("data", "key", "fix"),
    [
        ({**recipe(), "modle": "x"}, "recipe.modle", "Did you mean `model`?"),
        (recipe(coeficient=0.5), "recipe.prefetch.coeficient", "Did you mean `coefficient`?"),
        (
            recipe(targets={"router": {**ROUTER, "dependancy": "x"}}),
            "recipe.prefetch.targets.router.dependancy",
            "Did you mean `dependency`?",
        ),
        (recipe(zzz=1), "recipe.prefetch.zzz", "Known: enabled, coefficient, only, targets."),
        ({**recipe(), "superkernel": {"enable": True}}, "recipe.superkernel.enable", "Did you mean `enabled`?"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(data: Any, key: str, fix: str) -> None:
    problem = only_problem(data)
    assert (problem.severity, problem.code, problem.key, problem.fix) == ("error", "unknown-key", key, fix)


@pytest.mark.parametrize("value", [0, -3, 1.5, 1.0000001, "0", "-0.5", "1.01"])
def test_a_coefficient_out_of_range_is_refused_wherever_it_stands(value: Any) -> None:
    for problem, key in (
        (only_problem(recipe(coefficient=value)), "recipe.prefetch.coefficient"),
        (target(coefficient=value), "recipe.prefetch.targets.router.coefficient"),
    ):
        assert (problem.code, problem.key) == ("out-of-range", key)
        assert str(value) in problem.message
        assert "above 0 and at most 1" in problem.message
        assert problem.fix


@pytest.mark.parametrize("value", ["half", True, [0.5], {"a": 1}, float("nan"), float("inf"), "", "0,5"])
def test_a_coefficient_that_is_no_number_is_refused(value: Any) -> None:
    problem = only_problem(recipe(coefficient=value))
    assert (problem.code, problem.key) == ("bad-type", "recipe.prefetch.coefficient")
    assert "number" in problem.message


@given(st.decimals(min_value="0.0001", max_value=1, places=4))
def test_a_coefficient_is_exact_whether_float_or_text(number: Decimal) -> None:
    assert parse_coefficient(float(number)) == number
    assert parse_coefficient(str(number)) == number


@pytest.mark.parametrize("key", ["max_size", "offset"])
@pytest.mark.parametrize("value", [-1, "-18 MiB"])
def test_negative_sizes_are_refused(key: str, value: Any) -> None:
    problem = target(**{key: value})
    assert (problem.code, problem.key) == ("out-of-range", f"recipe.prefetch.targets.router.{key}")
    assert str(value) in problem.message


def test_a_max_size_of_zero_is_refused_but_an_offset_of_zero_is_not() -> None:
    assert target(max_size=0).code == "out-of-range"
    assert parse_recipe(recipe(targets={"router": {**ROUTER, "offset": 0}}))[1] == []


@pytest.mark.parametrize("value", ["18 mb", "big", 0.5, True, ["18 MiB"]])
def test_what_is_no_size_is_refused_with_the_spelling(value: Any) -> None:
    problem = target(max_size=value)
    assert (problem.code, problem.key) == ("bad-size", "recipe.prefetch.targets.router.max_size")
    assert "MiB" in problem.message + problem.fix


def test_mib_and_mb_are_different_sizes() -> None:
    sizes = []
    for text in ("18 MiB", "18 MB"):
        parsed, problems = parse_recipe(recipe(targets={"router": {**ROUTER, "max_size": text}}))
        assert problems == []
        sizes.append(parsed.prefetch.targets[0].max_size)
    assert sizes == [18 * 2**20, 18 * 10**6]


@pytest.mark.parametrize(
    ("keys", "code", "part", "text"),
    [
        ({"weight": None}, "missing-key", "weight", "has no `weight`"),
        ({"dependency": None}, "missing-key", "dependency", "has no `dependency`"),
        ({"weight": 3}, "bad-type", "weight", "is a path"),
        ({"dependency": ["a"]}, "bad-type", "dependency", "is a path"),
        ({"weight": "layers.(0|1).x"}, "bad-pattern", "weight", "regular expressions"),
        ({"weight": ""}, "bad-pattern", "weight", "empty"),
        ({"dependency": "layers..x:input"}, "bad-pattern", "dependency", "empty part"),
        ({"dependency": "layers.{i}.x:inptu"}, "bad-pattern", "dependency", ":inptu"),
        ({"in": "forward"}, "bad-type", "in", "Class.method"),
    ],
)
def test_bad_targets(keys: dict[str, Any], code: str, part: str, text: str) -> None:
    problem = target(**keys)
    assert (problem.code, problem.key) == (code, f"recipe.prefetch.targets.router.{part}")
    assert text in problem.message


def test_a_wrong_port_suggests_the_right_one() -> None:
    assert target(dependency="layers.{i}.x:inptu").fix == "Did you mean `input`?"


@pytest.mark.parametrize(
    ("data", "code", "key"),
    [
        (3, "bad-type", "recipe"),
        ({"name": "t", "prefetch": None}, "missing-key", "recipe.model"),
        ({"model": 3, "name": "t"}, "bad-type", "recipe.model"),
        ({"model": "toy", "runtime": ["ge_graph"]}, "bad-type", "recipe.runtime"),
        ({"model": "toy", "prefetch": [1]}, "bad-type", "recipe.prefetch"),
        (recipe(enabled="yes"), "bad-type", "recipe.prefetch.enabled"),
        (recipe(targets=[ROUTER]), "bad-type", "recipe.prefetch.targets"),
        (recipe(targets={"router": "layers.{i}.x"}), "bad-type", "recipe.prefetch.targets.router"),
        (recipe(targets={"a-b": ROUTER}), "bad-name", "recipe.prefetch.targets.a-b"),
        (recipe(targets={1: ROUTER}), "bad-name", "recipe.prefetch.targets.1"),
        (recipe(targets={}), "no-targets", "recipe.prefetch.targets"),
        (recipe(only=[]), "no-targets", "recipe.prefetch.only"),
        (recipe(only=3), "bad-type", "recipe.prefetch.only"),
        (recipe(only=[1]), "bad-type", "recipe.prefetch.only"),
        (recipe(only=["ruoter"]), "unknown-target", "recipe.prefetch.only"),
    ],
)
def test_bad_structure_is_a_problem_never_a_traceback(data: Any, code: str, key: str) -> None:
    problem = only_problem(data)
    assert (problem.code, problem.key) == (code, key)
    assert problem.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "model", "prefetch", "targets", "only", "weight", "options", "superkernel", "x", 1]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_mapping_is_read_without_a_traceback(data: Any) -> None:
    parsed, problems = parse_recipe(data)
    assert isinstance(parsed, Recipe)
    assert all(p.code and p.message and p.key for p in problems)


def test_only_suggests_the_target_that_was_meant() -> None:
    problem = only_problem(recipe(only=["ruoter"]))
    assert "`ruoter`" in problem.message
    assert problem.fix == "Did you mean `router`?"


def test_only_may_be_one_name_and_repeats_count_once() -> None:
    for only in ("router", ["router", "router"]):
        parsed, problems = parse_recipe(recipe(only=only))
        assert problems == []
        assert parsed.prefetch.only == ("router",)


def test_only_may_name_a_target_that_has_its_own_error() -> None:
    problem = only_problem(recipe(only=["router"], targets={"router": {**ROUTER, "coefficient": 2}}))
    assert problem.code == "out-of-range"


def test_all_problems_come_at_once_and_good_targets_survive() -> None:
    parsed, problems = parse_recipe(
        recipe(
            coefficient="half",
            coeficient=1,
            only=["nobody"],
            targets={
                "good": ROUTER,
                "bad": {"weight": "a..b", "dependency": "c:side", "max_size": 0, "offset": "x", "coefficient": -3},
            },
        )
    )
    assert sorted(p.code for p in problems) == sorted(
        [
            "unknown-key",
            "bad-type",
            "unknown-target",
            "bad-pattern",
            "bad-pattern",
            "out-of-range",
            "bad-size",
            "out-of-range",
        ]
    )
    assert [t.name for t in parsed.prefetch.targets] == ["good"]


def test_a_problem_points_at_its_line_or_at_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        "name: t\nmodel: toy\nprefetch:\n  coefficient: 0.5\n  targets:\n    router:\n"
        "      weight: layers.{i}.router\n      dependency: layers.{i}.o_proj\n      coefficient: 7\n"
        '    flow: {weight: a..b, dependency: "layers.{i}.x", ofset: 1}\n    half:\n      weight: layers.{i}.x\n'
    )
    data: Any = OmegaConf.to_container(OmegaConf.load(file))
    data["prefetch"]["coefficient"] = -3
    data["prefetch"]["targets"]["router"]["maxsize"] = 1
    _, problems = parse_recipe(data, YamlSource(file))
    places = {(p.key or "").removeprefix("recipe.prefetch."): (p.file, p.line) for p in problems}
    name = str(file)
    assert places == {
        "coefficient": (None, None),
        "targets.router.maxsize": (None, None),
        "targets.router.coefficient": (name, 9),
        "targets.flow.weight": (name, 10),
        "targets.flow.ofset": (name, 10),
        "targets.half.dependency": (name, 11),
    }


def parsed_recipe(**more: Any) -> Recipe:
    return parse_recipe({**recipe(), **more})[0]


def test_a_recipe_for_another_model_is_refused() -> None:
    assert check_model(parsed_recipe(), "toy") == []
    (problem,) = check_model(parsed_recipe(), "qwen3")
    assert (problem.severity, problem.code, problem.key) == ("error", "recipe-for-another-model", "recipe.model")
    assert "`toy`" in problem.message
    assert "`qwen3`" in problem.message


@pytest.mark.parametrize(
    ("mode", "multi_stream", "expected"),
    [
        ("ge_graph", 1, None),
        ("ge_graph", 2, None),
        ("npugraph_ex", 1, None),
        ("ge_graph", 0, ("error", "multi-stream-off", "deployment.multi_stream")),
        ("npugraph_ex", 0, ("error", "multi-stream-off", "deployment.multi_stream")),
        ("eager", 0, ("warning", "eager-prefetch", "runtime.exe_mode")),
        ("aclgraph", 1, ("error", "aclgraph", "runtime.exe_mode")),
        ("ge_grahp", 1, ("error", "unknown-mode", "runtime.exe_mode")),
    ],
)
def test_execution_modes(mode: str, multi_stream: int, expected: tuple[str, str, str] | None) -> None:
    problems = check_mode(parsed_recipe(), mode, multi_stream)
    assert [(p.severity, p.code, p.key) for p in problems] == ([expected] if expected else [])


def test_a_recipe_with_both_levers_off_runs_in_any_mode() -> None:
    off = parsed_recipe(prefetch={"enabled": False, "targets": {"router": ROUTER}})
    assert check_mode(off, "aclgraph", 0) == []
    assert check_mode(off, "ge_graph", 0) == []


def test_a_name_that_is_not_the_files_path_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "recipe" / "toy" / "mine.yaml"
    file.parent.mkdir(parents=True)

    def said(name: str, composed: str = "") -> list[tuple[str, str, int | None]]:
        file.write_text(f"model: toy\nname: {name}\n")
        data = {"model": "toy", "name": composed or name}
        return [(p.severity, p.code, p.line) for p in parse_recipe(data, YamlSource(file))[1]]

    assert said("toy/mine") == []
    assert said("toy/yours") == [("warning", "name-is-not-path", 2)]
    assert said("toy/mine", "other") == []  # on the command line
