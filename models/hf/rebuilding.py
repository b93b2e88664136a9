"""Build a model again from the classes of a rewritten file, on the same parameters and buffers."""

import copy
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from models.hf.quiet import quiet
from models.problems import Problem, RefusedError


def rebuild(module: nn.Module, original: ModuleType, rewritten: ModuleType, switches: Mapping[str, Any]) -> nn.Module:
    """A copy of `module` in which the classes of `original` are those of `rewritten`.

    Modules whose class is another file's stay what they are; the outermost ones of `original` are made again from
    their configuration.

    Args:
        module: the whole model.
        original: the Python module whose file was rewritten.
        rewritten: the sibling with the rewritten classes.
        switches: set on the configurations of the copy.

    Returns:
        The copy, in eval mode; its parameters, buffers and tensors are those of `module`.

    Raises:
        RefusedError: a module of the file has no configuration to be made from, or has other parameters.
    """
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    twin = copy.deepcopy(module, shared)
    for name, value in switches.items():
        set_on_all(twin, name, value)
    twin = _replaced(twin, original, rewritten)
    _share(twin, module)
    return twin.eval()


def set_on_all(module: nn.Module, name: str, value: Any) -> None:
    """Set an attribute on every configuration inside a model."""
    seen: set[int] = set()
    todo = [m.config for m in module.modules() if hasattr(getattr(m, "config", None), "to_dict")]
    while todo:
        config: Any = todo.pop()
        if id(config) not in seen:
            seen.add(id(config))
            setattr(config, name, value)
            todo += [part for part in vars(config).values() if hasattr(part, "to_dict")]


def _replaced(module: nn.Module, original: ModuleType, rewritten: ModuleType) -> nn.Module:
    """`module` with every part of the original file made again.

    What is made may hold parts of the original again: multimodal models get their text model from an Auto class.
    """
    for fqn in _outermost(module, original):
        made = _made_again(module.get_submodule(fqn), rewritten, fqn)
        if rewritten is not original:
            made = _replaced(made, original, rewritten)
        if not fqn:
            return made
        module.set_submodule(fqn, made)
    return module


def _outermost(module: nn.Module, original: ModuleType) -> list[str]:
    found: list[str] = []
    for fqn, child in module.named_modules():
        inside = any(not outer or fqn.startswith(f"{outer}.") for outer in found)
        if type(child).__module__ == original.__name__ and not inside:
            found.append(fqn)
    return found


def _made_again(old: nn.Module, rewritten: ModuleType, fqn: str) -> nn.Module:
    cls = getattr(rewritten, type(old).__name__, None)
    config = getattr(old, "config", None)
    if cls is None or not hasattr(config, "to_dict"):
        what = f"{type(old).__name__} ({fqn or 'the model'})"
        message = f"{what} can't be made again: " + ("it has no configuration" if cls else "the new file lacks it")
        raise RefusedError([Problem("error", "cannot-rebuild", message, "Use transform=wrap.", "transform")])
    with quiet(), torch.random.fork_rng(devices=[]), next(old.parameters()).device:
        return cls(config)


def _share(made: nn.Module, old: nn.Module) -> None:
    """Give parameters, buffers and tensors kept as plain attributes of `old` to `made`."""
    names = {name for name, _ in made.named_parameters(remove_duplicate=False)}
    lost = names ^ {name for name, _ in old.named_parameters(remove_duplicate=False)}
    if lost:
        message = f"{type(old).__name__} has other parameters when it is made again: {', '.join(sorted(lost))}"
        raise RefusedError([Problem("error", "cannot-rebuild", message, "Use transform=wrap.", "transform")])
    for name, module in old.named_modules(remove_duplicate=False):
        twin = made.get_submodule(name)
        twin._parameters.update(module._parameters)
        twin._buffers.update(module._buffers)
        for key, value in vars(module).items():
            if isinstance(value, Tensor):
                setattr(twin, key, value)
