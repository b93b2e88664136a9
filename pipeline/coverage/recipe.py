"""The general recipe of the table: all targets of the committed `generic` recipes in one plan."""

from typing import Any

from models.problems import raise_errors
from pipeline.recipe import Recipe, parse_recipe

NAMES = ("attention", "mlp", "moe")
_COEFFICIENT = 0.5


def general_recipe() -> Recipe:
    """The targets of `generic/attention`, `generic/mlp` and `generic/moe`, each for half of its weight."""
    from ruamel.yaml import YAML

    from pipeline.compose import CONF

    targets: dict[str, Any] = {}
    for name in NAMES:
        data = YAML(typ="safe").load((CONF / "recipe" / "generic" / f"{name}.yaml").read_text(encoding="utf-8"))
        for target, values in data["prefetch"]["targets"].items():
            kept = {key: value for key, value in values.items() if key != "coefficient"}
            targets[f"{name}_{target}"] = kept
    prefetch = {"enabled": True, "coefficient": _COEFFICIENT, "only": None, "targets": targets}
    recipe, problems = parse_recipe({"name": "generic/coverage", "prefetch": prefetch})
    raise_errors(problems)
    return recipe
