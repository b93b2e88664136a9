"""Structural paths: what the text means, what it matches, and what is said when it matches nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from models.paths import AnyName, IndexSet, LayerIndex, Names, PatternError, parse_pattern


def block() -> nn.Module:
    return nn.ModuleDict(
        {"attn": nn.ModuleDict({"q": nn.Linear(4, 4), "o": nn.Linear(4, 4)}), "mlps": nn.ModuleList([nn.Linear(4, 4)])}
    )


@pytest.fixture(scope="module")
def names() -> Names:
    head = nn.Linear(4, 8, bias=False)
    embed = nn.Embedding(8, 4)
    head.weight = embed.weight
    inner = nn.ModuleDict({"embed": embed, "layers": nn.ModuleList(block() for _ in range(12))})
    return Names(nn.ModuleDict({"model": inner, "head": head}), "model", "layers")


def found(names: Names, text: str, i: int | None = None) -> list[str]:
    return [m.fqn for m in names.expand(parse_pattern(text), i)]


@pytest.mark.parametrize(
    ("text", "segment"),
    [
        ("{i}", LayerIndex(0)),
        ("{i+1}", LayerIndex(1)),
        ("{i-2}", LayerIndex(-2)),
        ("{ i + 1 }", LayerIndex(1)),
        ("*", AnyName()),
        ("[0,2-5]", IndexSet(frozenset({0, 2, 3, 4, 5}))),
        ("[7]", IndexSet(frozenset({7}))),
        ("self_attn", "self_attn"),
        ("0", "0"),
    ],
)
def test_each_kind_of_segment_is_read(text: str, segment: object) -> None:
    assert parse_pattern(f"layers.{text}.x").segments[1] == segment


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("layers..q", "empty part"),
        (".layers", "empty part"),
        ("layers.{j}.q", "{j}"),
        ("layers.{i*2}.q", "{i*2}"),
        ("layers.{i+}.q", "{i+}"),
        ("layers.1*.q", "1*"),
        ("layers.(0|1).q", "(0|1)"),
        ("layers.[].q", "set of indices"),
        ("layers.[a].q", "set of indices"),
        ("layers.[5-2].q", "backwards"),
        ("layers.[0-99999999999].q", "larger than any model"),
        ("layers.a b.q", "a b"),
    ],
)
def test_what_is_no_path_is_refused_by_naming_the_part(text: str, part: str) -> None:
    with pytest.raises(PatternError) as error:
        parse_pattern(text)
    assert part in str(error.value)


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_a_pattern_error(text: str) -> None:
    try:
        assert parse_pattern(text).segments
    except PatternError as error:
        assert str(error)


def test_paths_are_relative_to_the_root_or_full_names(names: Names) -> None:
    assert found(names, "layers.{i}.attn.q", 3) == ["model.layers.3.attn.q"]
    assert found(names, "model.layers.{i}.attn.q", 3) == ["model.layers.3.attn.q"]
    assert found(names, "head") == ["head"]
    assert names.locate("layers.0.attn") == "model.layers.0.attn"
    assert names.locate("head") == "head"
    assert names.locate("layers.12.attn") is None


def test_layer_arithmetic_leaves_the_model_at_its_ends(names: Names) -> None:
    assert found(names, "layers.{i+1}.attn.q", 10) == ["model.layers.11.attn.q"]
    assert found(names, "layers.{i+1}.attn.q", 11) == []
    assert found(names, "layers.{i-1}.attn.q", 0) == []


def test_a_one_is_not_a_ten(names: Names) -> None:
    assert all(f.startswith("model.layers.1.") for f in found(names, "layers.1.*.*"))
    assert "model.layers.10.attn.q" not in found(names, "layers.[1].attn.*")


def test_wildcards_match_one_segment_and_are_captured(names: Names) -> None:
    matches = names.expand(parse_pattern("layers.[0,10-11].attn.*"))
    assert [m.fqn for m in matches] == [f"model.layers.{i}.attn.{p}" for i in (0, 10, 11) for p in "qo"]
    assert [m.captures for m in matches][:2] == [("0", "q"), ("0", "o")]
    assert [m.i for m in matches] == [0, 0, 10, 10, 11, 11]
    assert found(names, "layers.*.q") == []


def test_parameters_can_be_named(names: Names) -> None:
    assert found(names, "layers.{i}.attn.q.weight", 1) == ["model.layers.1.attn.q.weight"]


def test_captures_fill_the_dependency() -> None:
    assert parse_pattern("layers.{i}.mlps.*.up").fill(3, ("1",)) == "layers.3.mlps.1.up"
    assert parse_pattern("layers.{i-1}.x").fill(0) is None
    assert parse_pattern("layers.{i}.x").fill(None) is None
    assert parse_pattern("layers.[0-3].x").fill(None, ("4",)) is None
    assert parse_pattern("layers.[0-3].x").fill(None, ("2",)) == "layers.2.x"


def test_a_tied_weight_has_one_canonical_name(names: Names) -> None:
    assert names.canonical["head.weight"] == names.canonical["model.embed.weight"] == "model.embed.weight"


def test_names_are_worded_like_the_recipe(names: Names) -> None:
    assert names.relative("model.layers.4.attn.q", 4) == "layers.{i}.attn.q"
    assert names.relative("model.layers.5.attn.q", 4) == "layers.{i+1}.attn.q"
    assert names.relative("model.layers.3.attn.q", 4) == "layers.{i-1}.attn.q"
    assert names.relative("model.layers.11.attn.q", 4) == "layers.11.attn.q"
    assert names.relative("model.layers.4", 4) == "layers.{i}"
    assert names.relative("head", 4) == "head"


@pytest.mark.parametrize(
    ("text", "reason", "near"),
    [
        ("layers.{i}.atn.q", "`model.layers.0` has no `atn`; it has attn, mlps", "layers.{i}.attn.q"),
        ("layers.{i+1}.attn.qq", "has no `qq`; it has q, o", "layers.{i+1}.attn.q"),
        ("layers.40.attn.q", "`model.layers` has no `40`; it has 0 to 11", "layers.4.attn.q"),
        ("laiers.{i}.attn.q", "has no `laiers`", "layers.{i}.attn.q"),
        ("layers.{i}.mlps.3", "`model.layers.0.mlps` has no `3`; it has 0", "layers.{i}.mlps.0"),
        ("hed", "has no `hed`", "head"),
    ],
)
def test_a_miss_says_where_the_path_leaves_the_model_and_what_is_near(
    names: Names, text: str, reason: str, near: str
) -> None:
    message, suggestions = names.explain_miss(parse_pattern(text))
    assert reason in message
    assert near in suggestions


def test_nothing_is_suggested_where_nothing_is_near(names: Names) -> None:
    assert names.nearest(parse_pattern("zzzzzz")) == []
