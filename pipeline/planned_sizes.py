"""How many bytes of each weight the full-size plan copies, to resolve the same recipe on the tiny model.

The tiny model's weights are small, so its plan takes the bytes of the full one: those of the weight at the same place
in a layer of the same kind. The target's name says too little: it may stand for several weights (q, k and v), and
layers may differ.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from models.paths import Names
from pipeline.picked_layers import without_numbers
from transforms.plan import Prefetch

Bytes = tuple[int, int]  # of the whole local weight, and copied
_Kind = frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class PlannedSizes:
    """Sizes by place, from the closest description of it to the vaguest; the largest where a description has several.

    Attributes:
        found: description -> (theoretical size, max_size), bytes.
    """

    found: Mapping[tuple[object, ...], Bytes] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, names: Names, prefetches: Iterable[Prefetch]) -> "PlannedSizes":
        """The sizes of a plan for the model with these names."""
        kinds = telling_kinds(names)
        found: dict[tuple[object, ...], Bytes] = {}
        for p in prefetches:
            size = p.theoretical_size, p.max_size
            for key in _descriptions(p.target, p.weight, names, kinds):
                found[key] = max(size, found.get(key, size))
        return cls(found)

    def has(self, target: str) -> bool:
        """Whether the plan copies anything for this target."""
        return (target,) in self.found

    def find(self, target: str, weight: str, names: Names, kinds: Mapping[int, _Kind]) -> Bytes | None:
        """Bytes for a weight of another size of the model.

        Args:
            target: name in the recipe.
            weight: FQN of the parameter in that model.
            names, kinds: of that model, the latter as `telling_kinds` gives them.

        Returns:
            None if the plan has nothing for the target. Where it has no weight at this place in a layer of this kind,
            the largest of what is alike: `full_size_problems` finds out whether that is wrong.
        """
        return next(filter(None, map(self.found.get, _descriptions(target, weight, names, kinds))), None)


def _descriptions(target: str, weight: str, names: Names, kinds: Mapping[int, _Kind]) -> list[tuple[object, ...]]:
    layer = names.layer_of(weight)
    path = weight
    if layer is not None:
        path = "#." + weight.removeprefix(f"{names.layer_list}.{layer}.")
    kind = kinds[layer] if layer is not None else None
    return [(target, path, kind), (target, path), (target, "like", without_numbers(path)), (target,)]


def telling_kinds(names: Names) -> Mapping[int, _Kind]:
    """Layer -> what tells it from others at any size: classes of its modules, and their switches and types."""
    found: dict[int, set[tuple[str, ...]]] = {i: set() for i in range(names.layer_count)}
    for fqn, module in names.modules.items():
        layer = names.layer_of(fqn)
        if layer is None:
            continue
        path = without_numbers(fqn.removeprefix(f"{names.layer_list}.{layer}"))
        found[layer].add((path, type(module).__name__))
        for name, value in vars(module).items():
            if isinstance(value, bool | str) and not name.startswith("_"):  # else: bookkeeping of the library
                found[layer].add((path, name, without_numbers(str(value))))
    return {layer: frozenset(kind) for layer, kind in found.items()}
