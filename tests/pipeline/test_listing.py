"""`list`: what can be chosen."""

import pytest

from tests.pipeline.cli_fixtures import App


def test_every_section_with_descriptions(app: App):
    found = app("list", "format=json").json
    assert {"models", "recipes", "deployments", "hardware", "runtimes", "backends", "transforms"} <= set(found)
    names = {entry["name"]: entry["description"] for entry in found["recipes"]}
    assert names["toy/decode"] == "Toy: the router after o_proj"
    assert {"prefetch.source", "prefetch.wrap"} <= {entry["name"] for entry in found["transforms"]}


def test_every_committed_option_says_what_it_is_for(app: App):
    found = app("list", "format=json").json
    parts = [part for key, part in found.items() if key != "status"]
    assert [entry["name"] for part in parts for entry in part if not entry["description"]] == []


@pytest.mark.parametrize("name", ["recipes", "recipe"])
def test_one_section(app: App, name: str):
    assert set(app("list", name, "format=json").json) == {"status", "recipes"}


def test_text(app: App):
    out = app("list", "recipes").out
    assert "toy/decode" in out and "the router after o_proj" in out


def test_an_unknown_section_names_the_near_one(app: App):
    result = app("list", "recipies", "format=json")
    assert result.code == 2 and "`recipes`" in result.json["problems"][0]["message"]
