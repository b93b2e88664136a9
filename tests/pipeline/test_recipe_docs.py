"""docs/recipes.md knows every problem code and every key that the code knows."""

import re
from pathlib import Path

from omegaconf import OmegaConf

from pipeline.recipe import PREFETCH_KEYS, RECIPE_KEYS, TARGET_KEYS, parse_recipe
from pipeline.superkernel_options import OPTIONS
from pipeline.superkernel_section import STRATEGIES, SUPERKERNEL_KEYS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
SOURCES = ("recipe", "recipe_fields", "resolve", "target_resolver", "legality", "advice")


def codes() -> set[str]:
    found: set[str] = set()
    for name in SOURCES:
        source = (ROOT / "pipeline" / f"{name}.py").read_text(encoding="utf-8")
        found |= set(re.findall(r"(?:\.error|\.warn|Illegal)\(\s*\"([a-z-]+)\"", source))
    return found


def test_every_problem_code_is_explained_and_none_is_made_up() -> None:
    problems = TEXT.split("## Problems")[1]
    explained = {
        code
        for row in re.findall(r"^\| (`[^|]*)\|", problems, re.MULTILINE)
        for code in re.findall(r"`([a-z-]+)`", row)
    }
    assert len(codes()) > 30
    assert explained == codes()


def test_every_key_is_explained() -> None:
    for key in (
        *(k for k in RECIPE_KEYS if k != "prefetch"),
        *PREFETCH_KEYS,
        *TARGET_KEYS,
        *SUPERKERNEL_KEYS,
        *STRATEGIES,
        *OPTIONS,
    ):
        assert re.search(rf"`(prefetch\.)?{re.escape(key)}`", TEXT), key


def test_the_example_is_a_recipe() -> None:
    example = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert example is not None
    recipe, problems = parse_recipe(OmegaConf.to_container(OmegaConf.create(example[1])))  # type: ignore[arg-type]
    assert problems == []
    assert len(recipe.prefetch.targets) == 2
