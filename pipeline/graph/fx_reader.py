"""Collects the FX graph of npugraph_ex, after its passes. Runs in the worker."""

import importlib
from collections.abc import Sequence
from typing import Any

from pipeline.graph.front_end import wrap_method
from pipeline.graph.graph import Graph, Mark, Node

_MARK = "npu_recipes.mark.default"
_PREFETCH = "npu.npu_prefetch.default"
_BEGIN, _END = "npu.super_kernel_scope_begin.default", "npu.super_kernel_scope_end.default"
_DEFAULTS = (None, None, 0, 0)  # of the prefetch's arguments


class FxReader:
    """Hooks into npugraph_ex's graph class; one graph may be lowered afterwards.

    Attributes:
        graphs: the FX graphs that were made.
    """

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        converter = importlib.import_module("npugraph_ex._acl_concrete_graph.fx2acl_converter")
        wrap_method(converter.AclConcreteGraph, "optimize_graph_without_runtime", self._on_graph)

    def read(self, arguments: Sequence[tuple[str, tuple[str, ...]]]) -> Graph:
        """The graph as plain data: placeholders first, then calls in program order.

        Args:
            arguments: of every argument of the graph, where it comes from and which parameter it is.
        """
        (graph,) = self.graphs
        nodes: list[Node] = []
        marks: list[Mark] = []
        scopes: list[str] = []
        placeholders = 0
        for fx in graph.nodes:
            target = _name(fx)
            if target == _MARK:
                tensor, module, port = fx.args
                marks.append(Mark(module, port, tensor.name, nodes[-1].name if nodes else ""))
                continue
            if target == _BEGIN:
                scopes.append(str(fx.args[0] if fx.args else fx.kwargs.get("scope_name")))
            elif target == _END and scopes:
                label = str(fx.args[0] if fx.args else fx.kwargs.get("scope_name"))
                scopes.remove(label if label in scopes else scopes[-1])
            source, aliases = "", ()
            if fx.op == "placeholder":
                source, aliases = arguments[placeholders] if placeholders < len(arguments) else ("", ())
                placeholders += 1
            nodes.append(_node(fx, target, scopes, source, aliases))
        return Graph("fx", tuple(nodes), tuple(marks))

    def _on_graph(self, result: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        self.graphs.append(graph.fx_graph.graph)


def _node(fx: Any, target: str, scopes: Sequence[str], source: str, aliases: tuple[str, ...]) -> Node:
    inputs = [node.name for node in fx.all_input_nodes]
    attrs: dict[str, Any] = {"scope": scopes[-1]} if scopes and fx.op == "call_function" else {}
    controls: list[str] = []
    if target == _PREFETCH:
        named = dict(zip(("input", "dependency", "max_size", "offset"), _DEFAULTS, strict=True))
        named |= dict(zip(named, fx.args, strict=False)) | dict(fx.kwargs)
        inputs = [named["input"].name]
        controls = [named["dependency"].name] if named["dependency"] is not None else []
        attrs |= {"max_size": named["max_size"], "offset": named["offset"]}
    return Node(fx.name, target, tuple(inputs), tuple(controls), attrs, source, aliases)


def _name(fx: Any) -> str:
    """`npu.npu_prefetch.default`, `getitem`, or for nodes that call nothing, `placeholder` and the like."""
    if fx.op != "call_function":
        return str(fx.op)
    if hasattr(fx.target, "_schema"):
        return str(fx.target)
    return str(getattr(fx.target, "__name__", fx.target))
