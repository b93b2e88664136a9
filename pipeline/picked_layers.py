"""Layers that a recipe picks by number, and whether source text can say so.

Source is written once for all layers of one structure, on the tiny model, which has fewer layers than the full one.
What is planned for all layers of a structure comes out right. For layers picked by number (`layers.[3-5].mlp`) the text
would do more, or less, than the plan, with nothing on the tiny model to tell. So that is refused.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from models.paths import Names, Pattern
from models.problems import Problem
from pipeline.recipe import Recipe

if TYPE_CHECKING:
    from pipeline.resolve import Resolution
    from pipeline.target_resolver import Resolvable

Covered = dict[str, set[int]]  # key of a target or scope -> layers


def picked_layer_problems(
    recipe: Recipe, full: "tuple[Resolvable, Resolution]", tiny: "tuple[Resolvable, Resolution]"
) -> list[Problem]:
    """What a source diff made on the tiny model would not do as planned.

    Args:
        recipe: as parsed.
        full: the model at full size, and what the recipe means there.
        tiny: the same for the tiny model.
    """
    picked = dict(_picked(recipe))
    if not picked:
        return []
    report = recipe.reporter()
    names, tiny_names = (Names(loaded.module, loaded.root, loaded.layers) for loaded, _ in (full, tiny))
    kinds, tiny_kinds = kinds_of_layers(names), kinds_of_layers(tiny_names)
    covered, tiny_covered = _covered(names, full[1]), _covered(tiny_names, tiny[1])
    for key, pattern in picked.items():
        layers, tiny_layers = covered.get(key, set()), tiny_covered.get(key, set())
        if not layers or _alike(layers, kinds, tiny_layers, tiny_kinds):
            continue
        report.error(
            "picked-layers",
            key,
            f"`{pattern.text}` picks {len(layers)} of {len(kinds)} layers by number: source is written once for all "
            "layers of one structure, so the diff would not do what is planned",
            "Write {i} for all layers that have it, take strategy decoder_layers for the whole loop, or choose "
            "transform=wrap.",
        )
    return report.problems


def _picked(recipe: Recipe) -> Iterable[tuple[str, Pattern]]:
    """Key and path of what is named without `{i}`."""
    for target in recipe.prefetch.targets if recipe.prefetch.enabled else ():
        for pattern in (target.weight, target.dependency):
            if not pattern.uses_layer:
                yield target.key, pattern
    if recipe.superkernel.enabled and recipe.superkernel.strategy == "custom":
        for scope in recipe.superkernel.scopes:
            if not scope.first.uses_layer:
                yield scope.key, scope.first


def _covered(names: Names, resolution: "Resolution") -> Covered:
    found: Covered = {}
    for entry in resolution.plan.prefetch:
        layer = names.layer_of(entry.dependency)
        layer = names.layer_of(entry.weight) if layer is None else layer
        if layer is not None:
            found.setdefault(f"recipe.prefetch.targets.{entry.target}", set()).add(layer)
    for placed in resolution.scopes.placed:
        first, last = names.layer_of(placed.scope.first), names.layer_of(placed.scope.last)
        if first is not None and last is not None:
            found.setdefault(f"recipe.superkernel.scopes.{placed.part.name}", set()).update(range(first, last + 1))
    return found


def kinds_of_layers(names: Names) -> Mapping[int, frozenset[tuple[str, str]]]:
    """Layer -> its structure: paths and classes of its modules, without the numbers of lists."""
    found: dict[int, set[tuple[str, str]]] = {i: set() for i in range(names.layer_count)}
    for fqn, module in names.modules.items():
        layer = names.layer_of(fqn)
        if layer is not None:
            path = fqn[len(names.layer_list) + 1 :].partition(".")[2]
            found[layer].add((without_numbers(path), type(module).__name__))
    return {layer: frozenset(kind) for layer, kind in found.items()}


def without_numbers(path: str) -> str:
    """A path in which every index of a list is `#`."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1#", path)


def _alike(
    layers: set[int],
    kinds: Mapping[int, frozenset[tuple[str, str]]],
    tiny_layers: set[int],
    tiny_kinds: Mapping[int, frozenset[tuple[str, str]]],
) -> bool:
    """Whether both models have it in all layers of the same structures, and in no other layer."""
    wanted = {kinds[layer] for layer in layers}
    whole = layers == {layer for layer, kind in kinds.items() if kind in wanted}
    return whole and tiny_layers == {layer for layer, kind in tiny_kinds.items() if kind in wanted}
