"""A small GE graph and FX graph as the readers give them, and the plan that they fulfil; tests break single things.

Two layers: o_proj -> gate_up -> down. gate_up is prefetched after o_proj, down after the input of gate_up, and the
next layer's o_proj after down.
"""

from dataclasses import replace
from typing import Any

from pipeline.graph.graph import Graph, Mark, Node
from transforms.plan import Plan, Prefetch

BYTES = 4096
LAYERS = 2


def fqn(layer: int, name: str) -> str:
    return f"model.layers.{layer}.{name}"


def entry(target: str, layer: int, weight: str, dependency: str, port: str = "output", size: int = 1024) -> Prefetch:
    return Prefetch(target, f"{weight}.weight", dependency, port, layer, BYTES, size)  # type: ignore[arg-type]


PLAN = Plan(
    "toy",
    "toy/test",
    "ge_graph",
    (
        entry("gate_up", 0, fqn(0, "gate_up"), fqn(0, "o_proj")),
        entry("down", 0, fqn(0, "down"), fqn(0, "gate_up"), "input"),
        entry("o_next", 0, fqn(1, "o_proj"), fqn(0, "down")),
        entry("gate_up", 1, fqn(1, "gate_up"), fqn(1, "o_proj")),
        entry("down", 1, fqn(1, "down"), fqn(1, "gate_up"), "input"),
    ),
)


def ge_graph() -> Graph:
    """The GE graph of PLAN."""
    weights = [fqn(layer, name) for layer in range(LAYERS) for name in ("o_proj", "gate_up", "down")]
    nodes = [Node("x", "Data", argument="L['x']")]
    nodes += [Node(_data(w), "Data", argument=f"{w}.weight", aliases=(f"{w}.weight",)) for w in weights]
    marks = []
    newest, copies = "x", 0

    def prefetch(weight: str, dependency: str) -> None:
        nonlocal copies
        chain = (f"Cmo_{copies - 1}",) if copies else ()
        attrs: dict[str, Any] = {"max_size": 1024}
        nodes.append(Node(f"Cmo_{copies}", "Cmo", (_data(weight),), (dependency, *chain), attrs))
        copies += 1

    for layer in range(LAYERS):
        o_proj, norm, gate_up, down = (f"{name}_{layer}" for name in ("o_proj", "norm", "gate_up", "down"))
        nodes.append(Node(o_proj, "MatMul", (newest, _data(fqn(layer, "o_proj")))))
        marks.append(Mark(fqn(layer, "o_proj"), "output", o_proj, o_proj))
        prefetch(fqn(layer, "gate_up"), o_proj)
        nodes.append(Node(norm, "RmsNorm", (o_proj,)))
        marks.append(Mark(fqn(layer, "gate_up"), "input", norm, norm))
        prefetch(fqn(layer, "down"), norm)
        transposed = f"transposed_{layer}"
        nodes.append(Node(transposed, "Transpose", (_data(fqn(layer, "gate_up")),)))
        nodes.append(Node(gate_up, "MatMul", (norm, transposed)))
        nodes.append(Node(down, "MatMul", (gate_up, _data(fqn(layer, "down")))))
        marks.append(Mark(fqn(layer, "down"), "output", down, down))
        if layer + 1 < LAYERS:
            prefetch(fqn(layer + 1, "o_proj"), down)
        newest = down
    nodes.append(Node("NetOutput", "NetOutput", (newest,), (f"Cmo_{copies - 1}",)))
    return Graph("ge", tuple(nodes), tuple(marks))


def fx_graph() -> Graph:
    """The FX graph of PLAN: prefetches on stream 41, each behind an event, all joined at the end."""
    nodes = []
    for node in ge_graph().nodes:
        if node.op == "Cmo":
            event = {"record": node.name}
            nodes.append(Node(f"record_{node.name}", "npugraph_ex.tagged_event_record.default", attrs=event))
            event = {"wait": node.name, "stream": "41"}
            nodes.append(Node(f"wait_{node.name}", "npugraph_ex.tagged_event_wait.default", attrs=event))
            attrs = {**node.attrs, "offset": 0, "stream": "41"}
            nodes.append(Node(node.name, "npu.npu_prefetch.default", node.inputs, node.controls[:1], attrs))
        elif node.op == "NetOutput":
            event = {"record": "end", "stream": "41"}
            nodes.append(Node("record_end", "npugraph_ex.tagged_event_record.default", attrs=event))
            nodes.append(Node("wait_end", "npugraph_ex.tagged_event_wait.default", attrs={"wait": "end"}))
            nodes.append(Node("output", "output", node.inputs))
        else:
            names = {"Data": "placeholder", "MatMul": "aten.mm.default", "Transpose": "aten.t.default"}
            nodes.append(replace(node, op=names.get(node.op, node.op)))
    return Graph("fx", tuple(nodes), ge_graph().marks)


def change(graph: Graph, name: str, **fields: Any) -> Graph:
    """The graph with other fields in one node."""
    return replace(graph, nodes=tuple(replace(n, **fields) if n.name == name else n for n in graph.nodes))


def drop(graph: Graph, *names: str) -> Graph:
    """The graph without nodes; who waited for one of them no longer does."""

    def without(node: Node) -> Node:
        return replace(node, controls=tuple(c for c in node.controls if c not in names))

    return replace(graph, nodes=tuple(without(n) for n in graph.nodes if n.name not in names))


def move(graph: Graph, name: str, behind: str) -> Graph:
    """The graph with one node at another place."""
    moved = graph.by_name[name]
    nodes = [n for n in graph.nodes if n.name != name]
    nodes.insert([n.name for n in nodes].index(behind) + 1, moved)
    return replace(graph, nodes=tuple(nodes))


def _data(module: str) -> str:
    return "w_" + module.replace(".", "_")
