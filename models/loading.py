"""Load a model: full size on `meta` for shapes and traces, tiny on CPU for numerics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, Protocol

import torch
from torch import nn

from models.deployment import Deployment

Size = Literal["full", "tiny"]


@dataclass(frozen=True)
class ModelSpec:
    """What `conf/model/<name>.yaml` says, overrides applied.

    Attributes:
        name: the config group's option, e.g. `longcat_flash`.
        architecture: key of `ARCHITECTURES`.
        config: the full-size dimensions, names as in the checkpoint's config.json.
        tiny: overlay on `config` that shrinks the numbers and keeps the structure.
    """

    name: str
    architecture: str
    config: Mapping[str, Any]
    tiny: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class LoadedModel:
    """A model that can be run, traced, rebuilt from rewritten source, and compared.

    Attributes:
        module: the whole model, in eval mode, parameters without gradients.
        python_module: the module whose file holds the model's classes, e.g. `models.longcat_flash`.
        root: FQN of the module that owns the decoder layer list (`""` if it is `module` itself).
        layers: name of the layer list below `root`, e.g. `layers`.
        size: `full` (meta) or `tiny` (CPU, seeded weights).
    """

    spec: ModelSpec
    deployment: Deployment
    exe_mode: str
    module: nn.Module
    python_module: ModuleType
    root: str
    layers: str
    size: Size

    def run(
        self,
        module: nn.Module | None = None,
        decode_steps: int = 3,
        before_decode: Callable[[], None] = lambda: None,
    ) -> list[torch.Tensor]:
        """Prefill a seeded prompt of 5 tokens per sequence, then decode.

        Args:
            module: run this instead of `self.module` (same architecture, e.g. rebuilt from rewritten source).
            decode_steps: decode steps after the prefill.
            before_decode: called once, between the prefill and the first decode step.

        Returns:
            The output (logits, or hidden states of an FFN-role model) of the prefill and of every step.
        """
        raise NotImplementedError

    def decode_once(self, module: nn.Module | None = None) -> torch.Tensor:
        """One decode step with the deployment's batch and context on fresh caches (works on `meta`)."""
        raise NotImplementedError

    def rebuild(self, python_module: ModuleType, **switches: Any) -> nn.Module:
        """The same model from another module's classes, sharing this model's state.

        Args:
            python_module: usually the rewritten sibling of `self.python_module`.
            switches: set on the config, e.g. `enable_prefetch=True`.
        """
        raise NotImplementedError
