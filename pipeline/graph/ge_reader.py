"""Collects the GE graph as torchair makes it, after its passes. Runs in the worker."""

import importlib
from collections.abc import Sequence
from typing import Any

from pipeline.graph.front_end import wrap_method
from pipeline.graph.graph import Graph, Mark, Node
from pipeline.graph.marks import MARK

# Attributes of nodes that the checks read: name in GE -> name here.
_ATTRIBUTES = {
    "_super_kernel_scope": "scope",
    "_super_kernel_options": "options",
    "_user_stream_label": "stream",
    "_op_aicore_num": "aic",
    "_op_vectorcore_num": "aiv",
}
_PREFETCH_ATTRIBUTES = ("max_size", "offset")


class GeReader:
    """Hooks into torchair's graph class; one graph may be lowered afterwards.

    Attributes:
        graphs: the operator lists of the graphs that were made.
    """

    def __init__(self) -> None:
        self.graphs: list[list[Any]] = []
        self._marks: list[Mark] = []
        self._argument_of: dict[str, int] = {}
        self._arguments = 0
        converter = importlib.import_module("torchair._ge_concrete_graph.fx2ge_converter")
        converter.register_fx_node_ge_converter(MARK)(self._mark)
        graph_class = converter.GeConcreteGraph
        wrap_method(graph_class, "parse_input", self._on_input)
        wrap_method(graph_class, "optimize_graph_without_runtime", self._on_graph)

    def read(self, arguments: Sequence[tuple[str, tuple[str, ...]]]) -> Graph:
        """The graph as plain data.

        Args:
            arguments: of every argument of the graph, where it comes from and which parameter it is.
        """
        (operators,) = self.graphs
        nodes = tuple(self._node(operator, arguments) for operator in operators)
        return Graph("ge", nodes, tuple(self._marks))

    def _on_input(self, result: Any, graph: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if hasattr(result, "node"):
            self._argument_of[result.node.name] = self._arguments
        self._arguments += 1

    def _on_graph(self, result: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        self.graphs.append(list(graph.graph.op))

    def _mark(self, x: Any, module: str, port: str, meta_outputs: Any = None) -> None:
        operators = importlib.import_module("torchair.ge._ge_graph").get_default_ge_graph().op
        self._marks.append(Mark(module, port, x.node.name, operators[-1].name if len(operators) else ""))

    def _node(self, operator: Any, arguments: Sequence[tuple[str, tuple[str, ...]]]) -> Node:
        inputs: list[str] = []
        controls: list[str] = []
        for text in operator.input:
            name, _, index = text.rpartition(":")
            if name:
                (controls if index == "-1" else inputs).append(name)
        attrs = {ours: _value(operator.attr[name]) for name, ours in _ATTRIBUTES.items() if name in operator.attr}
        if operator.type == "Cmo":
            attrs |= {name: _value(operator.attr[name]) for name in _PREFETCH_ATTRIBUTES if name in operator.attr}
        number = self._argument_of.get(operator.name, len(arguments))
        source, aliases = arguments[number] if number < len(arguments) else ("", ())
        return Node(operator.name, operator.type, tuple(inputs), tuple(controls), attrs, source, aliases)


def _value(attribute: Any) -> Any:
    kind = attribute.WhichOneof("value")
    value = getattr(attribute, kind) if kind else None
    return value.decode(errors="replace") if isinstance(value, bytes) else value
