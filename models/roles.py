"""What the weights and modules of every decoder layer are for, found by running one decode step.

Nothing here knows a name of a model. The token mixer is what touches the layer's own caches or states (or, without
them, the products around a softmax); projections are told by what flows into what: before the mixing is in, behind it
is out. In a feed-forward, up is what nothing of it comes before, down what comes behind; gate is what passes a
nonlinearity before it meets up. A router is the last product before a top-k, experts are stacks or lists of weights.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from models.layer_flow import LayerFlow, layer_flows
from models.layer_parts import LayerParts
from models.operations import Runnable, record
from models.role_assignment import Assignment

ROLES: Mapping[str, str] = {
    "mixer": "what mixes tokens: attention, a state-space or a recurrent block",
    "attention.in": "projections of the mixer that read its input: q, k, v, or merged; of MLA q_a and kv_a",
    "attention.inner": "its projections of projections: q_b and kv_b of MLA, those between two states of a Mamba block",
    "attention.out": "its output projection",
    "attention.q": "the query projections, where they are apart from keys and values",
    "attention.k": "the key projection, likewise",
    "attention.v": "the value projection, likewise",
    "feed_forward": "the feed-forward: a dense MLP or a mixture of experts",
    "mlp.gate": "of a dense feed-forward: the projection that goes through the activation, where up is apart",
    "mlp.up": "the other projection to the intermediate size; the only or merged one",
    "mlp.down": "the projection back",
    "moe.router": "what scores the experts",
    "moe.experts.up": "first weights of the experts: gate, up or merged",
    "moe.experts.down": "second weights of the experts",
    "moe.shared.gate": "of the shared experts, as mlp.gate",
    "moe.shared.up": "as mlp.up",
    "moe.shared.down": "as mlp.down",
    "norm.mixer": "the norm that the mixer reads",
    "norm.mixer_out": "a norm of the mixer's output",
    "norm.feed_forward": "the norm that the feed-forward reads",
    "norm.feed_forward_out": "a norm of the feed-forward's output",
}


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


def unknown_role(role: str) -> str | None:
    """A sentence that helps with a role that does not exist; None if it does."""
    if role in ROLES:
        return None
    tails = {name.rpartition(".")[2]: name for name in reversed(list(ROLES))}
    near = difflib.get_close_matches(role, ROLES, n=1) or [
        tails[t] for t in difflib.get_close_matches(role.rpartition(".")[2], tails, n=1)
    ]
    return f"Did you mean `{near[0]}`?" if near else f"Roles: {', '.join(ROLES)}."


def find_roles(loaded: Runnable) -> Roles:
    """Find the roles of a model by running one decode step.

    Args:
        loaded: full size on `meta`, or tiny on CPU: the roles are the same.

    Raises:
        RefusedError: the step can't run on `meta`.
    """
    names = _Names(loaded.module)
    prefix = f"{loaded.root}.{loaded.layers}" if loaded.root else loaded.layers
    count = len(loaded.module.get_submodule(prefix))  # type: ignore[arg-type]
    step = record(loaded)
    layers, parts = [], {}
    for flow in layer_flows(step, [f"{prefix}.{i}" for i in range(count)], names.matrices):
        found = _roles_of(flow, names)
        layers.append({role: tuple(found.names[role]) for role in ROLES if found.names.get(role)})
        parts.update(found.parts)
    return Roles(tuple(layers), parts)


def _roles_of(flow: LayerFlow, names: "_Names") -> Assignment:
    found = Assignment(flow, names.name, names.stacks)
    found.assign(LayerParts(flow))
    return found


class _Names:
    """How a weight is named in a recipe."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.matrices = {n for n, p in module.named_parameters() if p.dim() >= 2}
        self.stacks = frozenset(n for n, p in module.named_parameters() if p.dim() >= 3)

    def name(self, weight: str) -> str:
        """The module that holds the weight, if it is its only matrix; else the parameter."""
        owner = weight.rpartition(".")[0]
        own: Sequence[Any] = [p for p in self._module.get_submodule(owner).parameters() if p.dim() >= 2]
        return owner if len(own) == 1 else weight
