"""Which nodes of a lowered graph are kernels: take time on the device when the compiler has done its plain duties.

These are the launches that a workload counts; `tests/pipeline/graph/test_workload.py` holds the two against each other.
"""

from dataclasses import dataclass

from pipeline.graph.graph import INPUTS, LAYOUTS, RESHAPES, Graph, Node

# The prefetches, which a workload gets as copies, the end of the graph, memory, and what the host does during capture.
_NO_KERNELS = (
    RESHAPES
    | INPUTS
    | {"Cmo", "npu.npu_prefetch.default", "NetOutput", "output", "Empty", "empty"}
    | {"_c10d_functional.wait_tensor.default", "npu._npu_fused_infer_attention_score_v2_get_max_workspace.default"}
    | {"current_stream", "get_stream_limit", "set_stream_limit"}
)
# Of constants only, these are computed when the graph is compiled. They make the empty tensors that stand for the
# optional inputs of GroupedMatmul which are not given. Nothing else is excused: a mask made of constants (Fill, Triu)
# is a kernel here.
_FOLDED = frozenset({"Cast", "Fill"})


@dataclass(frozen=True)
class Kernels:
    """The kernels of a graph.

    Attributes:
        nodes: in program order.
        weight_of: node -> FQN of the parameter that it is, or is another layout of (a kernel reads it so).
    """

    nodes: tuple[Node, ...]
    weight_of: dict[str, str]


def kernels_of(graph: Graph) -> Kernels:
    """The nodes that take time on the device: no inputs, no shapes, nothing dead, folded or of a weight's layout."""
    constant: set[str] = set()
    weight_of: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "Const" or (node.op in _FOLDED and node.inputs and constant.issuperset(node.inputs)):
            constant.add(node.name)
        elif node.aliases:
            weight_of[node.name] = node.aliases[0]
        elif node.op in LAYOUTS and node.inputs[0] in weight_of:
            weight_of[node.name] = weight_of[node.inputs[0]]
    alive = _alive(graph) if graph.kind == "ge" else graph.by_name.keys()
    nodes = tuple(
        node
        for node in graph.nodes
        if node.name in alive
        and node.name not in constant
        and node.name not in weight_of
        and node.op not in _NO_KERNELS
        and not {"record", "wait"} & node.attrs.keys()
        and not (graph.kind == "fx" and node.op in LAYOUTS)  # a view; what copies is a node of its own
        and not is_removed_copy(graph, node)
    )
    return Kernels(nodes, weight_of)


def is_removed_copy(graph: Graph, node: Node) -> bool:
    """torchair copies query and key before ApplyRotaryPosEmb, which writes in place. GE deletes a copy of what has no
    other reader and is no input of the graph (TensorMoveDeletePass)."""
    if node.op != "TensorMove" or {reader.op for reader in graph.consumers[node.name]} != {"ApplyRotaryPosEmb"}:
        return False
    name = node.inputs[0]
    while len(graph.consumers[name]) == 1 and graph.by_name[name].op in RESHAPES:
        name = graph.by_name[name].inputs[0]
    return len(graph.consumers[name]) == 1 and graph.by_name[name].op not in INPUTS


def _alive(graph: Graph) -> set[str]:
    """What the graph's end needs: collectives get tensors to write to, which GE does not use."""
    alive: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op == "NetOutput" or any(reader.name in alive for reader in graph.consumers.get(node.name, ())):
            alive.add(node.name)
    return alive
