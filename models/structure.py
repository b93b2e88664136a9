"""Find the decoder layers of any causal language model, without names."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from models.problems import Problem, RefusedError


def decoder_layers(module: nn.Module, run: Callable[[], Any]) -> tuple[str, str]:
    """Find the list of decoder layers by looking at a run.

    It is the outermost ModuleList (not inside another one) whose items all own parameters and do more than one layer of
    weights, whose items are really called, and, of several, the one with the most parameters. The calls matter:
    multimodal models carry vision towers with longer lists.

    Args:
        module: the whole model.
        run: runs it once, e.g. one decode step on text.

    Returns:
        FQN of the module that owns the list (`""` if `module` itself), and the list's name below it.

    Raises:
        RefusedError: no such list.
    """
    candidates = {fqn: layers for fqn, layers in _outermost(module).items() if not _leaves(layers)}
    called: set[str] = set()
    with ExitStack() as stack, torch.no_grad():
        for fqn, layers in candidates.items():
            for layer in layers:
                stack.callback(layer.register_forward_pre_hook(lambda *_, fqn=fqn: called.add(fqn)).remove)
        run()
    if not called:
        known = ", ".join(candidates) or "none"
        message = f"{type(module).__name__} runs no list of decoder layers; its lists of modules: {known}"
        fix = "Use a model whose layers are in one torch.nn.ModuleList."
        raise RefusedError([Problem("error", "no-decoder-layers", message, fix)])
    # The first of equal ones in definition order, so that the answer never depends on hashing.
    best = max((fqn for fqn in candidates if fqn in called), key=lambda fqn: _size(candidates[fqn]))
    root, _, name = best.rpartition(".")
    return root, name


def _outermost(module: nn.Module) -> dict[str, nn.ModuleList]:
    found: dict[str, nn.ModuleList] = {}
    for fqn, child in module.named_modules():
        if not isinstance(child, nn.ModuleList) or not len(child):
            continue
        inside = any(fqn.startswith(f"{outer}.") for outer in found)  # named_modules yields outer ones first
        if not inside and all(next(item.parameters(), None) is not None for item in child):
            found[fqn] = child
    return found


def _leaves(layers: nn.ModuleList) -> bool:
    """Embedding tables or output heads in a list are no layers."""
    return all(isinstance(item, nn.Embedding | nn.Linear) for item in layers)


def _size(layers: nn.ModuleList) -> int:
    return sum(p.numel() for p in layers.parameters())
