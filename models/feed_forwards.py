"""Which weights of a feed-forward are router, experts, shared experts, gate, up and down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from models.layer_flow import LayerFlow
from models.layer_parts import Part

_NONLINEAR = {"silu", "gelu", "sigmoid", "log_sigmoid", "tanh", "relu", "relu6", "leaky_relu", "elu", "celu", "selu"}
_NONLINEAR |= {"mish", "hardswish", "hardtanh", "hardsigmoid", "softplus", "threshold", "pow", "square", "exp", "erf"}
_NONLINEAR |= {"_softmax"}
_CHOICE = ("topk", "argmax", "sort", "argsort")
# A stack of experts has a dimension for them.
_STACK = 3
# Low-rank helpers beside the MLP (per-layer gates, adapters, connections between residuals) are far smaller than it.
_SMALL = 10


@dataclass
class Block:
    """Products of one MLP: those that read its input, which of them are gates, and those behind them."""

    ups: list[int]
    downs: list[int]
    gates: set[int] = field(default_factory=set)


@dataclass
class FeedForward:
    """What the products of one feed-forward are.

    Attributes:
        part: where it is.
        routers: products whose scores a top-k chooses from.
        experts: products with weights of routed experts.
        blocks: MLPs: dense, or the shared experts beside routed ones.
    """

    part: Part
    routers: list[int]
    experts: list[int]
    blocks: list[Block]

    @property
    def matmuls(self) -> list[int]:
        """Products that have a role, in order."""
        found = {*self.routers, *self.experts}
        return sorted(found.union(*(({*b.ups, *b.downs}) for b in self.blocks)))


class FeedForwards:
    """The feed-forwards of a layer.

    Args:
        flow: the layer.
        parts: its feed-forwards as `LayerParts` cuts them.
        outs: output projections of the mixers.
        outside: ops that are not in a mixer.
        shapes: parameter -> shape.
    """

    def __init__(
        self,
        flow: LayerFlow,
        parts: Sequence[Part],
        outs: Sequence[int],
        outside: Sequence[int],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._flow, self._outs, self._shapes = flow, outs, shapes
        choices = set(flow.named(*_CHOICE))
        self._choices = [k for k in outside if k in choices]
        routers = self._routers([m for p in parts for m in p.matmuls])
        found = [self._of(part, routers) for part in parts]
        largest = max((self._size(m) for f in found for m in f.matmuls), default=0)
        for each in found:
            if not each.experts:
                each.blocks = [b for b in each.blocks if _SMALL * max(map(self._size, b.ups)) >= largest]
        self.all = [each for each in found if each.matmuls]

    def _of(self, part: Part, routers: set[int]) -> FeedForward:
        flow = self._flow
        mine = [m for m in part.matmuls if m in routers]
        experts = [m for m in part.matmuls if m not in routers and self._is_expert(m, part)]
        chosen = [m for m in experts if any(flow.flows(c, m) for c in self._choices)]
        if chosen:  # stacks that no choice comes before are those of shared experts, and what follows them, too
            shared = flow.bits_of(set(experts) - set(chosen))
            experts = [m for m in chosen if not flow.follows(m, shared)]
        taken = {*mine, *experts}
        rest = [m for m in part.matmuls if m not in taken]
        # Projections into and out of a space that only experts work in are no expert of their own.
        if experts:
            rest = [m for m in rest if not flow.reaches(m, experts) and not flow.flows(experts[0], m)]
        return FeedForward(part, mine, experts, self._blocks(self._without_adapters(rest)))

    def _without_adapters(self, matmuls: list[int]) -> list[int]:
        """All but products far smaller than the largest, and those that read only what such a one gives."""
        flow, kept = self._flow, []
        largest = max(map(self._size, matmuls), default=0)
        dropped: set[frozenset[int]] = set()
        for m in matmuls:
            if _SMALL * self._size(m) < largest or not dropped.isdisjoint(flow.sources(m)):
                dropped.add(frozenset((flow.operations[m].index,)))
            else:
                kept.append(m)
        return kept

    def _routers(self, matmuls: list[int]) -> set[int]:
        found: set[int] = set()
        for choice in self._choices:
            before = [m for m in matmuls if self._flow.flows(m, choice) and not self._of_stack(m)]
            found |= {m for m in before if not self._flow.reaches(m, before)}
        return found

    def _is_expert(self, m: int, part: Part) -> bool:
        """A weight of a stack; or, behind a choice, a part of a weight, or one of a numbered list of modules."""
        if self._of_stack(m):
            return True
        if part.fqn is None or not any(self._flow.flows(c, m) for c in self._choices):
            return False
        prefix = f"{part.fqn}."
        listed = any(s.isdecimal() for w in self._flow.weights_of[m] for s in w.removeprefix(prefix).split("."))
        return listed or self._flow.operations[m].partial

    def _of_stack(self, m: int) -> bool:
        return any(len(self._shapes[w]) >= _STACK for w in self._flow.weights_of[m])

    def _size(self, m: int) -> int:
        """Numbers in the largest weight of a product; of a stack, those of one expert."""
        sizes = []
        for weight in self._flow.weights_of[m]:
            size = 1
            for n in self._shapes[weight][-2:]:
                size *= n
            sizes.append(size)
        return max(sizes)

    def _blocks(self, matmuls: list[int]) -> list[Block]:
        flow = self._flow
        blocks: list[Block] = []
        for m in matmuls:
            last = blocks[-1] if blocks else None
            ups = [u for u in last.ups if flow.flows(u, m)] if last is not None else []
            mixed = any(flow.flows(u, o) and flow.flows(o, m) for u in ups for o in self._outs)
            if last is None or mixed or any(flow.flows(d, m) for d in last.downs):
                blocks.append(Block([m], []))
            elif ups:
                last.downs.append(m)
            else:
                last.ups.append(m)
        found = [Block([u for u in b.ups if flow.reaches(u, b.downs)], b.downs) for b in blocks if b.downs]
        for block in found:
            block.gates = self._gates(block)
        return found

    def _gates(self, block: Block) -> set[int]:
        """Of several first products, those that pass a nonlinearity before they meet another."""
        flow, ups = self._flow, block.ups
        if len(ups) < 2:
            return set()
        last = block.downs[0]
        meeting = next((k for k in range(ups[-1] + 1, last + 1) if sum(flow.flows(u, k) for u in ups) >= 2), last)
        gates = {u for u in ups if any(flow.operations[k].name in _NONLINEAR for k in flow.between(u, meeting))}
        return gates if len(gates) < len(ups) else set()
