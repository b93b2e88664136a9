"""What the weights and modules of every decoder layer are for, found by running one decode step.

Nothing here knows a name of a model. The token mixer is what touches the layer's own caches or states (or, without
them, the products around a softmax); projections are told by what flows into what: before the mixing is in, behind it
is out. In a feed-forward, up is what nothing of it comes before, down what comes behind; gate is what passes a
nonlinearity before it meets up. A router is the last product before a top-k, experts are stacks or lists of weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from models.layer_flow import LayerFlow, layer_flows
from models.layer_parts import LayerParts
from models.operations import Runnable, record
from models.paths import Names
from models.role_assignment import Assignment
from models.role_names import ROLES


@dataclass(frozen=True)
class Roles:
    """Roles of every decoder layer.

    Attributes:
        layers: for each layer, role -> FQNs in execution order: modules, or bare parameters where a module holds
            several matrices. Roles that a layer does not have are not in it.
        parts: FQN -> number of the mixer or feed-forward of its layer that it belongs to, in execution order.
    """

    layers: tuple[Mapping[str, tuple[str, ...]], ...]
    parts: Mapping[str, int] = field(default_factory=dict)

    def of(self, layer: int, role: str) -> tuple[str, ...]:
        """Names of a role; () where the layer, or the model, does not have it."""
        return self.layers[layer].get(role, ()) if 0 <= layer < len(self.layers) else ()

    def counts(self) -> dict[str, tuple[int, int]]:
        """Role -> (layers that have it, names in all), in the order of `ROLES`; only roles that exist."""
        found = {}
        for role in ROLES:
            names = [layer[role] for layer in self.layers if role in layer]
            if names:
                found[role] = (len(names), sum(map(len, names)))
        return found


def find_roles(loaded: Runnable) -> Roles:
    """Find the roles of a model by running one decode step.

    Args:
        loaded: full size on `meta`, or tiny on CPU: the roles are the same.

    Raises:
        RefusedError: the step can't run on `meta`.
    """
    weights = _Weights(loaded.module)
    prefix = f"{loaded.root}.{loaded.layers}" if loaded.root else loaded.layers
    count = len(loaded.module.get_submodule(prefix))  # type: ignore[arg-type]
    step = record(loaded)
    layers, parts = [], {}
    for flow in layer_flows(step, [f"{prefix}.{i}" for i in range(count)], weights.matrices):
        found = _roles_of(flow, weights)
        layers.append({role: tuple(found.names[role]) for role in ROLES if found.names.get(role)})
        parts.update(found.parts)
    return Roles(tuple(layers), parts)


def names_of(loaded: Runnable) -> Names:
    """The names of a model; its roles are found when a path first names one."""
    return Names(loaded.module, loaded.root, loaded.layers, lambda: find_roles(loaded))


def _roles_of(flow: LayerFlow, weights: "_Weights") -> Assignment:
    found = Assignment(flow, weights.name, weights.shapes)
    found.assign(LayerParts(flow))
    return found


class _Weights:
    """How a weight is named in a recipe."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.shapes = {n: tuple(p.shape) for n, p in module.named_parameters()}
        self.matrices = {n for n, shape in self.shapes.items() if len(shape) >= 2}

    def name(self, weight: str) -> str:
        """The module that holds the weight, if it is its only matrix; else the parameter."""
        owner = weight.rpartition(".")[0]
        own: Sequence[Any] = [p for p in self._module.get_submodule(owner).parameters() if p.dim() >= 2]
        return owner if len(own) == 1 else weight
