"""Lowers one decode step of a model through the front end. Runs in the worker, after `front_end.start`."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pipeline.graph.fx_reader import FxReader
from pipeline.graph.ge_reader import GeReader
from pipeline.graph.graph import Graph


def lower(exe_mode: str, model: nn.Module, run: Callable[[Any], Any]) -> Graph:
    """Compile the model as its execution mode does, run one step on `meta`, and read the graph that was made.

    Args:
        exe_mode: `ge_graph` or `npugraph_ex`.
        model: the transformed model, its hooks in place.
        run: runs one decode step of the compiled model that it is given.

    Raises:
        Exception: whatever dynamo, AOT or the front end says.
    """
    reader, backend = _ge() if exe_mode == "ge_graph" else _npugraph_ex()
    names = _parameter_names(model)
    arguments: list[tuple[str, tuple[str, ...]]] = []

    def compile_graph(graph: torch.fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        for node, value in zip(placeholders, inputs, strict=True):
            aliases = names.get(id(value), ())
            arguments.append((aliases[0] if aliases else _source(node), aliases))
        return backend(graph, inputs, **options)

    torch._dynamo.reset()
    with torch.no_grad():
        run(torch.compile(model, backend=compile_graph, dynamic=False, fullgraph=True))
    return reader.read(arguments)


def _ge() -> tuple[GeReader, Callable[..., Any]]:
    torchair = importlib.import_module("torchair")
    return GeReader(), torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())


def _npugraph_ex() -> tuple[FxReader, Callable[..., Any]]:
    npugraph_ex = importlib.import_module("npugraph_ex")
    return FxReader(), npugraph_ex.get_npu_backend(compiler_config=npugraph_ex.CompilerConfig())


def _parameter_names(model: nn.Module) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found[id(parameter)] = (*found.get(id(parameter), ()), name)
    return found


def _source(node: torch.fx.Node) -> str:
    """Where dynamo found an argument, e.g. `L['forward_metadata'].block_table`."""
    source = getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)
