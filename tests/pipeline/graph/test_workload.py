"""What the simulator computes with is what the compiler sees: the trace's kernels are the GE graph's compute nodes.

The same operators in the same order, each on the same weights, behind the same kernels, on the same stream with the
same cores. The tables here are all that may differ.
"""

from dataclasses import dataclass, replace

import pytest

from models.workload import Kernel, WeightRead, Workload
from pipeline.graph.graph import INPUTS, Graph, Node
from pipeline.graph.kernels import kernels_of
from pipeline.graph.operators import OTHER_NAMES, field_name
from tests.pipeline.graph.lowered import GE, LONGCAT, NPUGRAPH_EX, QWEN3, lowered, prepared, real

# Kernels that need not wait for what a trace says, but wait for it through others. MoeDistributeCombineV2 takes the
# hidden states themselves only where zero experts return them.
WAITS_LESS = {"MoeDistributeCombine"}


ONLY = "[router,gate_up_0,down_0]"  # a single layer has no next one to prefetch for
DEEPSEEK = (
    *("deepseek_v3/decode_full", "deployment=deepseek_a3_ep16"),
    *("model.config.num_hidden_layers=3", "model.config.first_k_dense_replace=1"),
)


@dataclass(frozen=True)
class Launch:
    """One kernel, from either side; `inputs` are places in the list of launches."""

    op: str
    weights: frozenset[str]
    inputs: frozenset[int]
    stream: str
    cores: int


def launches_of_workload(workload: Workload) -> list[Launch]:
    return [
        Launch(
            kernel.op,
            frozenset(read.weight for read in kernel.weights),
            frozenset(kernel.inputs),
            kernel.stream,
            kernel.cores,
        )
        for kernel in workload.kernels
    ]


def launches_of_graph(graph: Graph) -> list[Launch]:
    """The nodes that take time on the device, dead and folded ones left out."""
    kernels = kernels_of(graph)
    place = {node.name: i for i, node in enumerate(kernels.nodes)}
    launches = []
    for node in kernels.nodes:
        sources = [kernel_behind(graph, name, place) for name in node.inputs if name not in kernels.weight_of]
        launches.append(
            Launch(
                field_name(node.op),
                frozenset(kernels.weight_of[name] for name in node.inputs if name in kernels.weight_of),
                frozenset(place[source] for source in sources if source is not None),
                str(node.attrs.get("stream", "main")),
                int(node.attrs.get("aic", 0)),
            )
        )
    return launches


def kernel_behind(graph: Graph, name: str, place: dict[str, int]) -> str | None:
    """The kernel that a tensor comes from, None if from none."""
    while name not in place:
        node = graph.by_name[name]
        if not node.inputs or node.op in INPUTS:
            return None
        name = node.inputs[0]
    return name


def differences(workload: Workload, graph: Graph) -> list[str]:
    """In words, in program order; the first makes the others likely."""
    traced, lowered = launches_of_workload(workload), launches_of_graph(graph)
    if graph.kind == "fx":
        lowered = as_npugraph_ex_names(lowered, traced)
    found = []
    for kernel, ours, theirs in zip(workload.kernels, traced, lowered, strict=False):
        if (ours.op, theirs.op) in OTHER_NAMES:
            ours = replace(ours, op=theirs.op)
        if kernel.op in WAITS_LESS and theirs.inputs < ours.inputs:
            ours = replace(ours, inputs=theirs.inputs)
        if ours != theirs:
            found.append(f"kernel {kernel.index} ({kernel.module}): trace {ours}, graph {theirs}")
    if len(traced) != len(lowered):
        found.append(f"{len(traced)} kernels in the trace, {len(lowered)} in the graph")
    return found


def as_npugraph_ex_names(lowered: list[Launch], traced: list[Launch]) -> list[Launch]:
    """npugraph_ex numbers its streams, and sets the cores of a stream by calls, not by attributes of its kernels."""
    labels: dict[str, str] = {}
    for ours, theirs in zip(traced, lowered, strict=False):
        labels.setdefault(theirs.stream, ours.stream)
    cores = [launch.cores for launch in traced] + [0] * len(lowered)
    return [replace(each, stream=labels[each.stream], cores=cores[i]) for i, each in enumerate(lowered)]


MOE = ("qwen3_moe/decode_full", "deployment=qwen3_moe_a3_ep16", "model.config.num_hidden_layers=2")
UNSHARDED = ("longcat_flash/decode_full", "deployment=unsharded", "model.config.num_layers=1")


@real
@pytest.mark.parametrize(
    "words",
    [
        (*LONGCAT, *GE),
        (*LONGCAT, *NPUGRAPH_EX),
        (*UNSHARDED, f"recipe.prefetch.only={ONLY}", *GE),
        (*QWEN3, *GE),
        (*MOE, *GE),
        (*MOE, *NPUGRAPH_EX),
        (*DEEPSEEK, *GE),
        # A cut embedding is computed in place in npugraph_ex: other names of the same tensors.
        (*DEEPSEEK, "deployment.embed_tp_size=1", *NPUGRAPH_EX),
    ],
    ids=lambda words: words[0].split("/")[0] + ("-fx" if NPUGRAPH_EX[0] in words else ""),
)
def test_the_traced_step_is_the_step_that_the_compiler_sees(words):
    """Kernel by kernel; and a graph holds as many prefetches, scopes and kernels in scopes as `validate` counts."""
    model = prepared(*words)
    check = lowered(*words, wrap=words[0] == QWEN3[0])  # the wrapped model launches the same
    assert check.rung.status == "passed", check.rung.detail
    assert check.graph is not None
    assert differences(model.workload, check.graph) == []
    layer = [kernel for kernel in model.workload.kernels if kernel.layer == 0]
    assert len(layer) >= 12  # and there is something to compare
    assert check.found == check.planned == len(model.resolution.plan.prefetch) > 0
    assert check.scoped_kernels == check.scoped_kernels_planned
    assert (check.scoped_kernels > 0) == bool(model.resolution.plan.scopes)


# ------------------------------------------------------------------------------------ what the comparison would notice

WORKLOAD = Workload(
    (
        Kernel(0, "QuantBatchMatmul", "up", "cube", weights=(WeightRead("up.weight", 4),)),
        Kernel(1, "GroupedMatmul", "experts", "cube", "moe", 8, weights=(WeightRead("w2", 4),), inputs=(0,)),
        Kernel(2, "Add", "", "vector", inputs=(0, 1)),
    )
)
NODES = (
    Node("w", "Data", aliases=("up.weight",)),
    Node("w2", "Data", aliases=("w2",)),
    Node("x", "Data"),
    Node("c", "Const"),
    Node("cmo", "Cmo", ("w2",), ("t",)),
    Node("t", "Transpose", ("w", "c")),
    Node("up", "QuantBatchMatmulV3", ("x", "t")),
    Node("value", "Cast", ("c",)),
    Node("empty", "Fill", ("c", "value")),
    Node("unused", "Fill", ("up", "c")),
    Node("down", "GroupedMatmul", ("up", "w2", "empty"), attrs={"stream": "moe", "aic": "8"}),
    Node("shape", "Reshape", ("down", "c")),
    Node("sum", "Add", ("up", "shape")),
    Node("out", "NetOutput", ("sum",)),
)


def graph_with(*changed, insert=()):
    """The graph with nodes replaced by name, and others inserted before the GroupedMatmul."""
    by_name = {node.name: node for node in changed}
    nodes = [by_name.get(node.name, node) for node in NODES]
    at = [node.name for node in nodes].index("down")
    return Graph("ge", (*nodes[:at], *insert, *nodes[at:]))


def test_the_same_step_has_no_differences():
    assert differences(WORKLOAD, graph_with()) == []


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (graph_with(Node("sum", "Mul", ("up", "shape"))), "op='Mul'"),
        (graph_with(Node("up", "QuantBatchMatmulV3", ("x", "w2"))), "frozenset({'w2'})"),
        (graph_with(Node("sum", "Add", ("shape", "shape"))), "inputs=frozenset({1})"),
        (graph_with(Node("down", "GroupedMatmul", ("up", "w2"), attrs={"aic": "8"})), "stream='main'"),
        (graph_with(Node("down", "GroupedMatmul", ("up", "w2"), attrs={"stream": "moe"})), "cores=0"),
        # What our operators once did anew in every layer: a scale in another type, a mask, a copy.
        (
            graph_with(Node("down", "GroupedMatmul", ("up", "scale")), insert=[Node("scale", "Cast", ("w2",))]),
            "3 kernels in the trace, 4 in the graph",
        ),
        (
            graph_with(Node("down", "GroupedMatmul", ("up", "mask")), insert=[Node("mask", "Triu", ("empty",))]),
            "op='Triu'",
        ),
        (graph_with(Node("sum", "Add", ("up", "copy")), insert=[Node("copy", "TensorMove", ("up",))]), "TensorMove"),
    ],
    ids=["operator", "weight", "data flow", "stream", "cores", "cast", "mask", "copy"],
)
def test_a_difference_is_found(graph, said):
    assert said in "\n".join(differences(WORKLOAD, graph))
