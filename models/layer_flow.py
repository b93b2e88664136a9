"""The data flow of one decoder layer: who calls what, what flows into what, and where tokens meet."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from models.operations import Operation, OperationCall, Outside, Step

_SOFTMAX = ("_softmax", "_safe_softmax", "softmax")
_COPIES = frozenset(("_to_copy", "clone", "copy", "contiguous", "_unsafe_view", "slice_scatter"))


@dataclass
class Node:
    """A module that runs in the layer: the ops inside it, and inside which of the modules that it calls.

    Attributes:
        fqn: the module.
        ops: positions (in the layer) of all ops inside, in order.
        direct: those that its own forward launches.
        children: modules that it calls, in the order of their first op.
    """

    fqn: str
    ops: list[int] = field(default_factory=list)
    direct: list[int] = field(default_factory=list)
    children: dict[str, "Node"] = field(default_factory=dict)


class LayerFlow:
    """One layer of a step. Ops are named by their position in the layer.

    Args:
        fqn: the layer.
        operations: its ops, in order.
        calls: the module calls in it.
        state: what belongs to this layer alone of all that the step did not make: its caches and states.
        matrices: parameters with two or more dimensions.
    """

    def __init__(
        self,
        fqn: str,
        operations: Sequence[Operation],
        calls: Sequence[OperationCall],
        state: Collection[Outside],
        matrices: Collection[str],
    ) -> None:
        self.fqn, self.operations, self.calls = fqn, operations, calls
        self._position = {op.index: k for k, op in enumerate(operations)}
        self._masks: list[int] = []
        for op in operations:
            mask = 0
            for j in self.inner(op.inputs):
                mask |= self._masks[j] | 1 << j
            self._masks.append(mask)
        self.weights_of = {
            k: [w for w in sorted(op.weights) if w in matrices] for k, op in enumerate(operations) if op.is_product
        }
        self.matmuls = [k for k, names in self.weights_of.items() if names]
        self.stateful = {k for k, op in enumerate(operations) if any(key in state for key in op.outside)}
        self.mixing = self.stateful or self._products()
        self.tree = self._tree()

    def flows(self, a: int, b: int) -> bool:
        """Whether the result of op `a` reaches op `b`."""
        return bool(self._masks[b] >> a & 1)

    def reaches(self, a: int, ops: Iterable[int]) -> bool:
        return any(self.flows(a, b) for b in ops)

    def follows(self, b: int, bits: int) -> bool:
        """Whether the result of any of the ops of a set (of `bits_of`) reaches op `b`."""
        return bool(self._masks[b] & bits)

    @staticmethod
    def bits_of(ops: Iterable[int]) -> int:
        """A set of ops as the bits of a number: layers with hundreds of experts in a loop have thousands of ops."""
        bits = 0
        for k in ops:
            bits |= 1 << k
        return bits

    def inner(self, indices: Iterable[int]) -> list[int]:
        """Positions of ops of the step that are in this layer."""
        return sorted(self._position[j] for j in indices if j in self._position)

    def between(self, a: int, b: int) -> list[int]:
        """Ops on a way from `a` to `b`."""
        return [k for k in range(a + 1, b) if self.flows(a, k) and self.flows(k, b)]

    def named(self, *names: str) -> list[int]:
        return [k for k, op in enumerate(self.operations) if op.name in names]

    def sources(self, matmul: int) -> list[frozenset[int]]:
        """Ops (of the step) that made what a weight is multiplied with; and what a cast or copy of it was made of."""
        found = [next((o for o in self.operations[matmul].operands if o), frozenset[int]())]
        while len(found[-1]) == 1 and (k := self._position.get(next(iter(found[-1])))) is not None:
            op = self.operations[k]
            if op.name not in _COPIES or len(op.operands) != 1:
                break
            found.append(op.operands[0])
        return found

    def without(self, removed: Collection[int], start: int, last: int) -> set[int]:
        """Ops up to `last` that the result of `start` reaches without passing through `removed`."""
        found = {start}
        for k in range(start + 1, last + 1):
            if k not in removed and not found.isdisjoint(self.inner(self.operations[k].inputs)):
                found.add(k)
        return found - {start}

    @property
    def softmaxes(self) -> list[int]:
        return self.named(*_SOFTMAX)

    def _products(self) -> set[int]:
        """Products of two activations around a softmax: attention that carries no state of its own."""
        pairs = [
            k
            for k, op in enumerate(self.operations)
            if op.is_product and not self.weights_of[k] and sum(bool(o) for o in op.operands) >= 2
        ]
        scores = {k for k in pairs if "attention" in self.operations[k].name}
        for softmax in self.softmaxes:
            before = [k for k in pairs if self.flows(k, softmax)]
            after = [k for k in pairs if self.flows(softmax, k)]
            if before and after:
                scores |= {before[-1], after[0]}
        return scores

    def _tree(self) -> Node:
        root = Node(self.fqn)
        for k, op in enumerate(self.operations):
            node = root
            node.ops.append(k)
            for name in op.path[op.path.index(self.fqn) + 1 :]:
                node = node.children.setdefault(name, Node(name))
                node.ops.append(k)
            node.direct.append(k)
        return root


def layer_flows(step: Step, layers: Sequence[str], matrices: Collection[str]) -> list[LayerFlow]:
    """The flow of every layer of a step.

    Args:
        step: as recorded.
        layers: FQNs of the decoder layers.
        matrices: parameters with two or more dimensions.
    """
    owners: dict[Outside, set[int]] = {}
    by_layer: dict[int, list[Operation]] = {i: [] for i in range(len(layers))}
    for op in step.operations:
        for key in op.outside:
            # What code outside the layers reads, too, is an input (positions, masks); it may update a layer's state.
            if op.layer is not None or not op.writes:
                owners.setdefault(key, set()).add(-1 if op.layer is None else op.layer)
        if op.layer is not None:
            by_layer[op.layer].append(op)
    state: Mapping[int, set[Outside]] = {i: set() for i in by_layer}
    for key, users in owners.items():
        if len(users) == 1 and -1 not in users:
            state[next(iter(users))].add(key)
    calls: dict[int, list[OperationCall]] = {i: [] for i in by_layer}
    for call in step.calls:
        if call.layer is not None:
            calls[call.layer].append(call)
    return [LayerFlow(fqn, by_layer[i], calls[i], state[i], matrices) for i, fqn in enumerate(layers)]
