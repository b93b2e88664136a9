"""Compile one decode step in one graph, and count the prefetches in it."""

import copy
from typing import Any

import torch
from torch import nn


def compiled_calls(loaded: Any, module: nn.Module) -> int:
    """Prefetch calls in the graph of one decode step.

    Args:
        loaded: a tiny `TransformersModel`, which knows how to run a step.
        module: the transformed model, switch on.

    Raises:
        Exception: what the compiler raises, e.g. for a graph break.
    """
    from models.hf.stepping import State

    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    stepper = loaded.stepper
    with torch.no_grad():
        logits, state = stepper.step(module, stepper.prompt(5, seed=1), State())
        compiled = torch.compile(module, fullgraph=True, dynamic=False, backend=keep)
        stepper.step(compiled, stepper.next_tokens(logits), copy.deepcopy(state))
    torch._dynamo.reset()
    operator = torch.ops.npu.npu_prefetch.default
    return sum(node.target in (operator, torch.ops.npu.npu_prefetch) for g in graphs for node in g.graph.nodes)
