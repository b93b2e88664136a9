"""Collects the FX graph of npugraph_ex, after its passes. Runs in the worker."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.graph.front_end import wrap_method
from pipeline.graph.graph import Graph, Mark, Node

_MARK = "npu_recipes.mark.default"
_PREFETCH = "npu.npu_prefetch.default"
_BEGIN, _END = "npu.super_kernel_scope_begin.default", "npu.super_kernel_scope_end.default"
_ENTER, _EXIT = "npugraph_ex.scope_enter.default", "npugraph_ex.scope_exit.default"
_EVENTS = {  # target -> (what it does, whether its second argument names the stream)
    "npugraph_ex.tagged_event_record.default": ("record", False),
    "npugraph_ex.tagged_event_record_on_stream.default": ("record", True),
    "npugraph_ex.tagged_event_wait.default": ("wait", False),
    "npugraph_ex.tagged_event_wait_on_stream.default": ("wait", True),
}
_SCOPE_KEYS = {"_user_stream_id": "stream", "_op_aicore_num": "aic", "_op_vectorcore_num": "aiv"}
_MAIN = ("0", "DEFAULT_STREAM_ID_MARKER")  # ids of the stream on which the step starts


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
        """The graph as plain data, in program order.

        Args:
            arguments: of every argument of the graph, where it comes from and which parameter it is.
        """
        (graph,) = self.graphs
        return read_fx(graph.nodes, arguments)

    def _on_graph(self, result: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        self.graphs.append(graph.fx_graph.graph)


def read_fx(fx_nodes: Sequence[Any], arguments: Sequence[tuple[str, tuple[str, ...]]]) -> Graph:
    """See `FxReader.read`. SuperKernel scopes and stream switches become attributes of the nodes inside."""
    nodes: list[Node] = []
    marks: list[Mark] = []
    super_kernels: list[str] = []
    scopes: list[dict[str, str]] = []
    placeholders = iter(arguments)
    for fx in fx_nodes:
        target = _name(fx)
        if target == _MARK:
            tensor, module, port = fx.args
            marks.append(Mark(module, port, tensor.name, nodes[-1].name if nodes else ""))
        elif target == _BEGIN:
            super_kernels.append(_label(fx))
        elif target == _END:
            # Scopes may overlap: the end names the one that it ends.
            if (label := _label(fx)) in super_kernels:
                super_kernels.remove(label)
        elif target == _ENTER:
            keys, values = fx.args[:2]
            scopes.append({ours: values[keys.index(key)] for key, ours in _SCOPE_KEYS.items() if key in keys})
        elif target == _EXIT:
            if scopes:
                scopes.pop()
        else:
            source, aliases = next(placeholders, ("", ())) if fx.op == "placeholder" else ("", ())
            attrs = {key: value for scope in scopes for key, value in scope.items()} if fx.op != "placeholder" else {}
            if super_kernels and fx.op == "call_function":
                attrs["scope"] = super_kernels[-1]
            nodes.append(_node(fx, target, attrs, source, aliases))
    return Graph("fx", tuple(nodes), tuple(marks))


def _node(fx: Any, target: str, around: Mapping[str, Any], source: str, aliases: tuple[str, ...]) -> Node:
    attrs = dict(around)
    inputs, controls = [node.name for node in fx.all_input_nodes], []
    if target == _PREFETCH:
        given: dict[str, Any] = {"dependency": None, "offset": 0}
        given |= dict(zip(("input", "dependency", "max_size", "offset"), fx.args, strict=False)) | dict(fx.kwargs)
        inputs = [given["input"].name]
        controls = [given["dependency"].name] if given["dependency"] is not None else []
        attrs |= {"max_size": given["max_size"], "offset": given["offset"]}
    elif target in _EVENTS:
        what, names_stream = _EVENTS[target]
        attrs[what] = fx.args[0]
        if names_stream:
            attrs["stream"] = fx.args[1]
    if attrs.get("stream") in _MAIN:
        del attrs["stream"]
    return Node(fx.name, target, tuple(inputs), tuple(controls), attrs, source, aliases)


def _label(fx: Any) -> str:
    return str(fx.args[0] if fx.args else fx.kwargs.get("scope_name"))


def _name(fx: Any) -> str:
    """`npu.npu_prefetch.default`, `getitem`, or for nodes that call nothing, `placeholder` and the like."""
    if fx.op != "call_function":
        return str(fx.op)
    if hasattr(fx.target, "_schema"):
        return str(fx.target)
    return str(getattr(fx.target, "__name__", fx.target))
