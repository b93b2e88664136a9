"""Finds, inside the lowered graph, the tensors that a plan names by module and port. Runs in the worker.

A hook on the module passes the tensor to an operator of ours that computes nothing. It goes through dynamo, AOT and
the FX passes like a prefetch does; where the graph is made, it is asked which node made its tensor, and is left out. So
the answer is exact: it is the very tensor of this module call, in the very lowering that is checked. The hook adds a
reader to that tensor, as a prefetch that depends on it does: a correct graph has that reader anyway.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_library = torch.library.Library("npu_recipes", "DEF")
_library.define("mark(Tensor x, str module, str port) -> ()")
_library.impl("mark", lambda x, module, port: None, "CompositeExplicitAutograd")
MARK = torch.ops.npu_recipes.mark.default
torch.fx.node.has_side_effect(MARK)  # it returns nothing: without this it is dead code


def mark_modules(model: nn.Module, ports: Iterable[tuple[str, str]]) -> None:
    """Mark the first tensor of each (module FQN, port) at every call.

    Raises:
        AttributeError: the model has no such module.
    """
    for fqn, port in dict.fromkeys(ports):
        module = model.get_submodule(fqn)
        if port == "output":
            module.register_forward_hook(_output_hook(fqn))
        else:
            module.register_forward_pre_hook(_input_hook(fqn), with_kwargs=True)


def _output_hook(fqn: str) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        torch.ops.npu_recipes.mark(_first_tensor(output), fqn, "output")

    return hook


def _input_hook(fqn: str) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        torch.ops.npu_recipes.mark(_first_tensor((args, tuple(kwargs.values()))), fqn, "input")

    return hook


def _first_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (tuple, list)):
        for item in value:
            if isinstance(item, (Tensor, tuple, list)):
                return _first_tensor(item)
    raise TypeError(f"no tensor in {type(value).__name__}")
