"""`recipe.superkernel` as written: keys, types, options and their ratios, custom scopes."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.problems import Problem
from pipeline.recipe import parse_recipe
from pipeline.superkernel_options import OPTIONS, as_text, merged
from pipeline.superkernel_section import SuperKernelSection

MOE = {"first": "layers.{i}.mlp"}
BRANCH = {"first": "layers.{i}.mlps.0", "last": "layers.{i}.mlps.1"}


def parsed(section: Any) -> tuple[SuperKernelSection, list[Problem]]:
    recipe, problems = parse_recipe({"name": "t", "model": "m", "superkernel": section})
    return recipe.superkernel, problems


def custom(**scopes: Any) -> dict[str, Any]:
    return {"enabled": True, "strategy": "custom", "scopes": scopes}


@pytest.mark.parametrize(
    ("section", "code", "key"),
    [
        ([], "bad-type", ""),
        ({"enabled": 1}, "bad-type", ".enabled"),
        ({"enable": True}, "unknown-key", ".enable"),
        ({"strategy": "atention"}, "unknown-strategy", ".strategy"),
        ({"strategy": ["moe"]}, "unknown-strategy", ".strategy"),
        ({"phase": "prefill"}, "decode-only", ".phase"),
        ({"phase": 3}, "bad-type", ".phase"),
        ({"options": "stream-fusion=1"}, "bad-type", ".options"),
        ({"options": {"stream-fussion": 1}}, "unknown-option", ".options.stream-fussion"),
        ({"options": {"stream-fusion": 2}}, "out-of-range", ".options.stream-fusion"),
        ({"options": {"stream-fusion": None}}, "out-of-range", ".options.stream-fusion"),
        ({"options": {"strict-scope-check": "maybe"}}, "out-of-range", ".options.strict-scope-check"),
        ({"options": {"dcci-disable-on-kernel": []}}, "out-of-range", ".options.dcci-disable-on-kernel"),
        ({"options": {"dcci-disable-on-kernel": "a:b"}}, "out-of-range", ".options.dcci-disable-on-kernel"),
        ({"options": {"dcci-disable-on-kernel": [1]}}, "out-of-range", ".options.dcci-disable-on-kernel"),
        ({"options": {"debug-aic-num": -1, "debug-aiv-num": 0}}, "out-of-range", ".options.debug-aic-num"),
        ({"options": {"debug-aic-num": 8}}, "bad-core-ratio", ".options.debug-aic-num"),
        ({"options": {"debug-aic-num": 8, "debug-aiv-num": 24}}, "bad-core-ratio", ".options.debug-aiv-num"),
        ({"options": {"debug-aic-num": 0, "debug-aiv-num": 0}}, "bad-core-ratio", ".options.debug-aiv-num"),
        ({"allow": ["eager"]}, "unknown-allowance", ".allow"),
        ({"allow": 3}, "bad-type", ".allow"),
        ({"scopes": [1]}, "bad-type", ".scopes"),
        ({"enabled": True, "strategy": "custom"}, "no-scopes", ".scopes"),
        (custom(**{"a b": MOE}), "bad-name", ".scopes.a b"),
        (custom(moe="layers.{i}.mlp"), "bad-type", ".scopes.moe"),
        (custom(moe={**MOE, "until": "x"}), "unknown-key", ".scopes.moe.until"),
        (custom(moe={"last": "layers.{i}.mlp"}), "missing-key", ".scopes.moe.first"),
        (custom(moe={"first": "layers..mlp"}), "bad-pattern", ".scopes.moe.first"),
        (custom(moe={**MOE, "last": "layers.*.mlp"}), "ambiguous-wildcard", ".scopes.moe.last"),
        (custom(moe={**MOE, "label": "moe"}), "bad-label", ".scopes.moe.label"),
        (custom(moe={**MOE, "label": "moe {i}"}), "bad-label", ".scopes.moe.label"),
        (custom(moe={**MOE, "options": {"x": 1}}), "unknown-option", ".scopes.moe.options.x"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(section: Any, code: str, key: str) -> None:
    _, problems = parsed(section)
    assert [(p.severity, p.code, p.key) for p in problems] == [("error", code, f"recipe.superkernel{key}")]


def test_a_good_section_is_kept() -> None:
    section, problems = parsed(
        {
            "enabled": True,
            "strategy": "moe",
            "options": {
                "stream-fusion": True,
                "dcci-disable-on-kernel": ["A", "B"],
                "debug-aic-num": 8,
                "debug-aiv-num": 16,
            },
            "allow": ["a2", "npugraph_ex"],
        }
    )
    assert problems == []
    assert section.enabled and section.strategy == "moe" and section.allow == ("a2", "npugraph_ex")
    assert as_text(section.options) == "stream-fusion=1:dcci-disable-on-kernel=A,B:debug-aic-num=8:debug-aiv-num=16"


def test_a_section_that_is_absent_is_off() -> None:
    assert parsed(None) == (SuperKernelSection(), [])
    assert not SuperKernelSection().enabled


def test_custom_scopes_have_labels_per_layer_and_options_of_their_own() -> None:
    section, problems = parsed(custom(moe={**MOE, "options": {"feed-sync-all": 1}}, main={**BRANCH, "label": "m.{i}"}))
    assert problems == []
    moe, main = section.scopes
    assert (moe.label, moe.first, moe.last, moe.options) == ("moe_{i}", moe.last, moe.first, (("feed-sync-all", "1"),))
    assert (main.label, main.last.text) == ("m.{i}", "layers.{i}.mlps.1")


def test_scopes_may_be_written_for_later_with_another_strategy_in_force() -> None:
    """So that one recipe can be swept over strategies."""
    section, problems = parsed({**custom(moe=MOE), "strategy": "attention"})
    assert problems == [] and len(section.scopes) == 1


@pytest.mark.parametrize(("aic", "aiv"), [(8, 0), (0, 8), (8, 8), (8, 16)])
def test_ratios_of_cores(aic: int, aiv: int) -> None:
    _, problems = parsed({"options": {"debug-aic-num": aic, "debug-aiv-num": aiv}})
    assert problems == []


def test_no_cores_at_all_is_no_ratio() -> None:
    _, problems = parsed({"options": {"debug-aic-num": 0, "debug-aiv-num": 0}})
    assert [(p.code, p.fix) for p in problems] == [("bad-core-ratio", "Leave both out for all cores.")]


def test_the_options_of_a_scope_win() -> None:
    assert merged((("a", "1"), ("b", "1")), (("b", "0"), ("c", "1"))) == (("a", "1"), ("b", "0"), ("c", "1"))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3))
keys = st.sampled_from(["enabled", "strategy", "options", "allow", "phase", "scopes", "x"])
option_values = st.dictionaries(st.sampled_from([*OPTIONS, "x"]), values, max_size=4)


@given(st.dictionaries(keys, values | option_values, max_size=6) | values)
def test_anything_is_a_section_or_is_refused(section: Any) -> None:
    found, problems = parsed(section)
    assert isinstance(found, SuperKernelSection)
    assert all(p.key and p.key.startswith("recipe.superkernel") for p in problems)
    if not isinstance(section, Mapping) and section is not None:
        assert problems
