"""What the wrap realisations share: hooks on one model instance, which know whether a decode step is running.

Hooks are objects, not closures, so that `copy.deepcopy` rebinds them to the copied modules and pickling works. Wrap
before `torch.compile` or `torch.export`: a compiled graph does not look for new hooks.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from models.prefetch import join_prefetch
from transforms.phase import is_decode


class Phase:
    """Whether the step that is running is a decode step; shared by all hooks of one wrapping."""

    decode = False


@dataclass
class Wrapped:
    """A model whose calls realise a plan; also a context manager that yields it and undoes the wrapping.

    Attributes:
        module: the model that was given; its `state_dict` keys are unchanged.
        root: the module whose call is a step.
        phase: of the step that is running.
    """

    module: nn.Module
    root: nn.Module
    phase: Phase
    handles: list[Any] = field(default_factory=list)

    def undo(self) -> None:
        """Take every hook off again. What was compiled before keeps its prefetches and scopes: compile again."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def __enter__(self) -> nn.Module:
        return self.module

    def __exit__(self, *error: object) -> None:
        self.undo()


def start(loaded: Any) -> Wrapped:
    """Follow the phase of a model.

    Args:
        loaded: a `LoadedModel`, or a plain module that is called with the phase or with the query tokens.
    """
    if isinstance(loaded, nn.Module):
        module, root, tokens = loaded, loaded, 1
    else:
        module = loaded.module
        root = module.get_submodule(loaded.root)
        tokens = 1 + getattr(getattr(loaded, "deployment", None), "next_n", 0)
    phase = Phase()
    names = [*inspect.signature(inspect.unwrap(root.forward)).parameters]
    handles = [
        root.register_forward_pre_hook(_SetPhase(phase, names, tokens), with_kwargs=True),
        root.register_forward_hook(_EndStep(phase)),
        root.register_forward_hook(_ClearPhase(phase), always_call=True),
    ]
    return Wrapped(module, root, phase, handles)


@dataclass
class _SetPhase:
    phase: Phase
    names: list[str]
    tokens: int

    def __call__(self, module: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> None:
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        self.phase.decode = is_decode(given, self.tokens)


@dataclass
class _EndStep:
    """In npugraph_ex the prefetch stream is joined at the end of the step."""

    phase: Phase

    def __call__(self, module: nn.Module, args: tuple, output: Any) -> None:
        join_prefetch(self.phase.decode)


@dataclass
class _ClearPhase:
    phase: Phase

    def __call__(self, module: nn.Module, args: tuple, output: Any) -> None:
        self.phase.decode = False
