"""A lowered decode step as plain data: what the worker hands over, and what the checks read."""

import graphlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

Kind = Literal["ge", "fx"]

# Operators that give their first input another shape, without a kernel: what holds for the one holds for the other.
RESHAPES = frozenset(
    {
        *("Identity", "Reshape", "Unsqueeze", "Squeeze", "ExpandDims", "Flatten", "Bitcast"),
        *("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.view.dtype"),
        *("aten.squeeze.dim", "aten.unsqueeze.default", "aten.detach.default", "aten.alias.default", "getitem"),
    }
)
# What may stand between a weight and the kernel that reads it: for a weight GE folds these into the kernel.
LAYOUTS = RESHAPES | {
    *("Transpose", "TransposeD", "TransData", "StridedSlice", "StridedSliceV2", "Slice", "Split", "SplitV"),
    *("aten.t.default", "aten.transpose.int", "aten.permute.default", "aten.slice.Tensor", "aten.select.int"),
    *("aten.expand.default", "aten.as_strided.default", "aten.split.Tensor", "aten.split_with_sizes.default"),
}
# Nodes that are there before the step starts: nothing has to wait for them.
INPUTS = frozenset({"Data", "RefData", "ConstPlaceHolder", "Const", "placeholder", "get_attr"})


@dataclass(frozen=True)
class Node:
    """One node of the graph, in program order.

    Attributes:
        name: unique in the graph.
        op: GE operator type (`MatMul`, `Cmo`), or FX target (`npu.npu_prefetch.default`).
        inputs: names of the producers of its data inputs, in order.
        controls: names of the nodes that must end first, without a data flow.
        attrs: `max_size`, `offset` of a prefetch; `scope`, `options` (SuperKernel), `stream` (absent on the main
            stream), `aic`, `aiv` of any; in an FX graph `record` and `wait`: the event that this node is about.
        argument: where an input comes from, e.g. the parameter's FQN; "" for other nodes.
        aliases: all FQNs of the parameter that this input is (tied weights have several); () if it is none.
    """

    name: str
    op: str
    inputs: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    argument: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mark:
    """Where one tensor of a module call is in the graph.

    Attributes:
        module: FQN.
        port: `input` or `output`: which tensor of the call.
        node: name of the node that produces it.
        after: name of the newest node when the call was entered (`input`) or left (`output`); "" at the start.
    """

    module: str
    port: str
    node: str
    after: str


@dataclass(frozen=True)
class Graph:
    """A lowered decode step.

    Attributes:
        kind: `ge` (GE graph) or `fx` (FX graph of npugraph_ex, after its passes).
        nodes: in program order.
        marks: of the modules that the plan names, in the order of their calls.
    """

    kind: Kind
    nodes: tuple[Node, ...]
    marks: tuple[Mark, ...] = ()

    @property
    def prefetch_op(self) -> str:
        """Operator of a prefetch in this kind of graph."""
        return "Cmo" if self.kind == "ge" else "npu.npu_prefetch.default"

    @cached_property
    def prefetches(self) -> tuple[Node, ...]:
        """Prefetch nodes in program order."""
        return tuple(node for node in self.nodes if node.op == self.prefetch_op)

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def position(self) -> dict[str, int]:
        """Name -> place in program order."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """Name -> nodes that read its result, in program order."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found.setdefault(name, []).append(node)
        return found

    def origin(self, name: str) -> Node:
        """The node itself, or what it only gives another shape."""
        node = self.by_name[name]
        while node.op in RESHAPES and node.inputs:
            node = self.by_name[node.inputs[0]]
        return node

    def readers(self, name: str) -> Iterator[Node]:
        """Kernels that read an input of the graph, also in another layout; no prefetches."""
        todo, seen = [name], {name}
        while todo:
            for node in self.consumers.get(todo.pop(), ()):
                if node.op == self.prefetch_op:
                    continue
                if node.op not in LAYOUTS:
                    yield node
                elif node.name not in seen:
                    seen.add(node.name)
                    todo.append(node.name)

    @cached_property
    def _before(self) -> dict[str, list[str]]:
        """Of every node, what it waits for directly.

        In GE that is data and control edges. In npugraph_ex a stream runs its nodes in order, and only events order
        nodes of different streams: a data flow between streams does not.
        """
        if self.kind == "ge":
            return {node.name: [*node.inputs, *node.controls] for node in self.nodes}
        found: dict[str, list[str]] = {}
        newest: dict[str, str] = {}  # of every stream
        recorded: dict[str, str] = {}
        for node in self.nodes:
            found[node.name] = []
            if node.op in INPUTS:
                continue
            stream = str(node.attrs.get("stream", ""))
            found[node.name] += [newest[stream]] if stream in newest else []
            newest[stream] = node.name
            if (event := node.attrs.get("record")) is not None:
                recorded[event] = node.name
            elif (event := node.attrs.get("wait")) in recorded:
                found[node.name].append(recorded[event])
        return found

    @cached_property
    def _ancestors(self) -> dict[str, int]:
        """Of every node, the nodes that must have ended before it starts, as the bits of an integer."""
        before = self._before
        masks: dict[str, int] = {}
        for name in graphlib.TopologicalSorter(before).static_order():
            mask = 0
            for earlier in before[name]:
                mask |= masks[earlier] | 1 << self.position[earlier]
            masks[name] = mask
        return masks

    def must_wait(self, name: str, earlier: str) -> bool:
        """Whether a node can't start before another has ended.

        Raises:
            graphlib.CycleError: nodes wait for each other.
        """
        return bool(self._ancestors[name] >> self.position[earlier] & 1)

    def to_json(self) -> dict[str, Any]:
        """Compact: fields with their default value are left out."""
        return {
            "kind": self.kind,
            "nodes": [{k: v for k, v in asdict(node).items() if v not in ((), {}, "")} for node in self.nodes],
            "marks": [asdict(mark) for mark in self.marks],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Graph":
        """Inverse of `to_json`."""
        nodes = (
            Node(**{**n, **{k: tuple(n[k]) for k in ("inputs", "controls", "aliases") if k in n}})
            for n in data["nodes"]
        )
        return cls(data["kind"], tuple(nodes), tuple(Mark(**m) for m in data["marks"]))
