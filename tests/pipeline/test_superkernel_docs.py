"""docs/superkernel.md knows every problem code, option, strategy and unfusable kernel that the code knows."""

import re
from pathlib import Path

from omegaconf import OmegaConf

from pipeline.fusable import UNFUSABLE
from pipeline.preconditions import PRECONDITIONS
from pipeline.recipe import parse_recipe
from pipeline.superkernel_options import OPTIONS
from pipeline.superkernel_section import SCOPE_KEYS, STRATEGIES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "superkernel.md").read_text(encoding="utf-8")
SOURCES = ("superkernel_section", "superkernel_options", "preconditions", "scopes", "scope_remarks", "picked_layers")


def codes() -> set[str]:
    """Codes of problems in the sources: first argument of `error` and `warn`, first item of what `_place` returns."""
    found = {c.code for c in PRECONDITIONS if c.code}
    for name in SOURCES:
        source = (ROOT / "pipeline" / f"{name}.py").read_text(encoding="utf-8")
        found |= set(re.findall(r"(?:\.error|\.warn)\(\s*\"([a-z-]+)\"", source))
        found |= set(re.findall(r"(?:return \(?|problems\.add\()\s*\"([a-z-]+)\",", source))
    return found


def test_every_problem_code_is_explained_and_none_is_made_up() -> None:
    problems = TEXT.split("## Problems")[1]
    explained = {
        code
        for row in re.findall(r"^\| (`[^|]*)\|", problems, re.MULTILINE)
        for code in re.findall(r"`([a-z-]+)`", row)
    }
    assert len(codes()) > 25
    assert explained == codes()


def test_every_word_is_explained() -> None:
    for word in (*OPTIONS, *STRATEGIES, *SCOPE_KEYS, *(c.value for c in PRECONDITIONS)):
        assert re.search(rf"`{re.escape(word)}`", TEXT), word
    for entry in UNFUSABLE:
        assert entry.ops[0] in TEXT


def test_the_example_is_a_recipe() -> None:
    example = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert example is not None
    data = OmegaConf.to_container(OmegaConf.create(example[1]))
    recipe, problems = parse_recipe(data)  # type: ignore[arg-type]
    assert problems == []
    assert [(s.name, s.label) for s in recipe.superkernel.scopes] == [
        ("attention", "attention_{i}"),
        ("moe", "experts_{i}"),
    ]
