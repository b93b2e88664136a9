"""The pre-pass: what a user types is what the configuration gets."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from pipeline.overrides import quote, quote_paths, read_overrides


def value_of(text: str) -> object:
    """What Hydra and OmegaConf make of a value."""
    parsed = OverridesParser.create().parse_override(f"x={text}").value()
    return OmegaConf.to_container(OmegaConf.create({"x": parsed}), resolve=True)["x"]  # type: ignore[index,call-overload]


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1))
def test_a_quoted_value_comes_back_whatever_it_holds(text: str):
    assert value_of(quote(text)) == text


segments = st.sampled_from(["layers", "{i}", "{i+1}", "{i-1}", "*", "self_attn", "0", "q_a_proj", "[0,2-5]"])
paths = st.builds(
    lambda parts, port: ".".join(["layers", *parts]) + port,
    st.lists(segments, min_size=1, max_size=5),
    st.sampled_from(["", ":input", ":output"]),
)


@given(paths, paths)
def test_structural_paths_in_a_mapping_need_no_quotes(weight: str, dependency: str):
    text = f"{{weight: {weight}, dependency: {dependency}, coefficient: 0.5, max_size: 18 MiB}}"
    expected = {"weight": weight, "dependency": dependency, "coefficient": 0.5, "max_size": "18 MiB"}
    assert value_of(quote_paths(text)) == expected


@given(paths)
def test_a_structural_path_as_the_whole_value_needs_no_quotes(path: str):
    [override], problems = read_overrides([f"recipe.prefetch.targets.x.weight={path}"])
    assert problems == [] and value_of(override.values[0]) == path


def test_quoted_paths_stay_as_they_are():
    text = "{weight: \"layers.{i}.a\", dependency: 'layers.{i}.b'}"
    assert quote_paths(text) == text


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_keys_of_our_own_are_forced_so_that_changing_and_adding_are_alike(sign: str):
    [override], _ = read_overrides([f"{sign}recipe.prefetch.coefficient=0.7"])
    assert override.hydra("0.7") == "++recipe.prefetch.coefficient=0.7"


@pytest.mark.parametrize("sign", ["", "+"])
def test_a_group_is_chosen_not_added(sign: str):
    [override], _ = read_overrides([f"{sign}recipe=a/b"])
    assert override.hydra("a/b") == "recipe=a/b"


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("recipe.prefetch.coefficient=0.5,0.7", ("0.5", "0.7")),
        ("recipe.prefetch.only=[router],[gate_up_0]", ("[router]", "[gate_up_0]")),
        ("recipe.prefetch.only=[router,gate_up_0]", ("[router,gate_up_0]",)),
        ("recipe.prefetch.coefficient=range(0.1,0.45,0.1)", ("0.1", "0.2", "0.3", "0.4")),
        ("recipe.x.weight=layers.{i}.a,layers.{i}.b", ('"layers.{i}.a"', '"layers.{i}.b"')),
        ("recipe=a/b,c/d", ("a/b", "c/d")),
        ("output=a,b = c", ('"a,b = c"',)),
        ("write=12e4567890abcdef", ('"12e4567890abcdef"',)),
        ("~recipe.prefetch.targets.x", ()),
    ],
)
def test_values_of_a_sweep(typed: str, values: tuple[str, ...]):
    [override], problems = read_overrides([typed])
    assert problems == [] and override.values == values


def test_the_later_override_of_a_key_wins():
    [override], _ = read_overrides(["recipe.prefetch.coefficient=0.5", "+recipe.prefetch.coefficient=0.7"])
    assert override.values == ("0.7",)


@pytest.mark.parametrize(
    ("typed", "code", "hint"),
    [
        ("recpe=x", "unknown-key", "`recipe`"),
        ("+trial.timout=3", "unknown-key", "`timeout`"),
        ("format.x=3", "unknown-key", "single value"),
        ("recipe", "not-an-override", "recipe"),
        ("recipe.superkernel.options=a=b", "cannot-parse", "a=b"),
        ("recipe.x={a", "cannot-parse", "{a"),
        ("recipe.x=interval(0,1)", "open-sweep", "interval"),
        ("hydra.sweep.dir=x", "owned-key", "npu-recipes"),
    ],
)
def test_what_cannot_be_read_is_a_problem_with_a_hint(typed: str, code: str, hint: str):
    _, [problem] = read_overrides([typed])
    assert problem.code == code and hint in problem.message


def test_every_unreadable_override_is_reported():
    _, problems = read_overrides(["recpe=x", "recipe.x={a", "trial.x=1"])
    assert len(problems) == 3


@pytest.mark.parametrize("path", ["layers.{j}.x", "layers.{i+}.x", "layers.{i}.o_proj:outpt"])
def test_a_path_that_is_none_reaches_those_who_read_paths(path: str):
    overrides, problems = read_overrides([f"recipe.prefetch.targets.a.weight={path}"])
    assert problems == [] and value_of(overrides[0].values[0]) == path


@pytest.mark.parametrize("group", ["model", "deployment", "hardware", "runtime"])
def test_what_a_recipe_selects_is_replaced_by_the_group_alone(group: str):
    """As a value of the recipe it would be printed, while another group was used."""
    _, [problem] = read_overrides([f"recipe.{group}=unsharded"])
    assert problem.code == "owned-key" and problem.fix
