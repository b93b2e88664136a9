"""The plan: what a recipe means for one model. The only thing that transforms read."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

Port = Literal["output", "input"]


@dataclass(frozen=True)
class Prefetch:
    """Copy the first `max_size` bytes of a weight, from `offset`, into L2 once the dependency has been produced.

    Attributes:
        target: name of the recipe's target this entry comes from.
        weight: FQN of the parameter, e.g. `model.layers.0.mlp.router.classifier.weight`.
        dependency: FQN of the module whose output (or input) the copy waits for.
        port: `output` or `input` of that module.
        layer: value of `{i}` in the recipe.
        theoretical_size: bytes of the whole local weight.
        max_size: bytes to copy.
        offset: first byte.
    """

    target: str
    weight: str
    dependency: str
    port: Port
    layer: int
    theoretical_size: int
    max_size: int
    offset: int = 0


@dataclass(frozen=True)
class Scope:
    """A SuperKernel scope from the first to the last module, both included."""

    label: str
    options: tuple[tuple[str, str], ...]
    first: str
    last: str


@dataclass(frozen=True)
class Plan:
    """Prefetches in the order in which their calls are issued in one decode step, and scopes.

    Attributes:
        model: name of the model.
        recipe: name of the recipe.
        exe_mode: `eager`, `ge_graph` or `npugraph_ex`.
        prefetch: in issue order (the order of `Workload.calls` events), which is the order of the CMO chain.
        scopes: SuperKernel scopes in execution order.
    """

    model: str
    recipe: str
    exe_mode: str
    prefetch: tuple[Prefetch, ...] = ()
    scopes: tuple[Scope, ...] = ()

    @cached_property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "hash": self.hash}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Plan":
        """Inverse of `to_json`.

        Raises:
            ValueError: the content does not have the hash that it carries.
        """
        plan = cls(
            data["model"],
            data["recipe"],
            data["exe_mode"],
            tuple(Prefetch(**p) for p in data["prefetch"]),
            tuple(Scope(**{**s, "options": tuple(map(tuple, s["options"]))}) for s in data["scopes"]),
        )
        if data.get("hash") not in (None, plan.hash):
            raise ValueError(f"the plan's content has hash {plan.hash}, but it carries {data['hash']}: it was edited")
        return plan
