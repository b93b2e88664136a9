"""Cut a decoder layer into its token mixers and its feed-forwards, by what flows through the modules that it calls."""

from dataclasses import dataclass

from models.layer_flow import LayerFlow, Node


@dataclass
class Part:
    """A mixer or a feed-forward.

    Attributes:
        fqn: the module; None where its weights lie loose in the layer.
        matmuls: products with weights, in order.
        ops: all ops of the module; of loose weights, just the products.
    """

    fqn: str | None
    matmuls: list[int]
    ops: list[int]


class LayerParts:
    """Mixers and feed-forwards of one layer, in execution order.

    A module that the layer calls is a mixer if something in it mixes tokens, else a feed-forward; a module that holds a
    mixer with an output projection of its own and products behind it is a layer in itself. Feed-forwards without a
    product behind a product (`fc1`, then `fc2`, directly in the layer; BERT's `intermediate` and `output`) are taken
    together.
    """

    def __init__(self, flow: LayerFlow) -> None:
        self._flow = flow
        self.mixers: list[Part] = []
        self.feed_forwards: list[Part] = []
        self._loose: list[int] = []
        self._split(flow.tree)
        self._complete_mixers()
        self._gather_loose()
        self.mixers.sort(key=lambda p: p.matmuls[0])
        self.feed_forwards.sort(key=lambda p: p.matmuls[0])

    def behind(self, node: Node) -> list[int]:
        """Products with weights that come behind all mixing in a node."""
        mixing = self._mixing(node)
        return [
            m
            for m in self._matmuls(node.ops)
            if any(self._flow.flows(x, m) for x in mixing) and not self._flow.reaches(m, mixing)
        ]

    def _split(self, node: Node) -> None:
        self._loose += self._matmuls(node.direct)
        for child in node.children.values():
            if not self._matmuls(child.ops):
                continue
            if not self._mixing(child):
                if self._is_feed_forward(child):
                    self.feed_forwards.append(self._part(child))
                else:
                    self._loose += self._matmuls(child.ops)
            elif self._is_layer(child):
                self._split(child)
            else:
                self.mixers.append(self._part(child))

    def _is_layer(self, node: Node) -> bool:
        """Whether a node is a mixer with its output projection, and feed-forward products behind it."""
        for child in node.children.values():
            behind = self.behind(child) if self._mixing(child) else []
            others = [m for m in self._matmuls(node.ops) if m not in set(child.ops)]
            if behind and len(others) >= 2 and all(self._flow.flows(behind[-1], m) for m in others):
                return True
        return False

    def _is_feed_forward(self, node: Node) -> bool:
        matmuls = self._matmuls(node.ops)
        return any(self._flow.flows(a, b) for a in matmuls for b in matmuls)

    def _part(self, node: Node) -> Part:
        """The part, without modules around it that add no weights of their own but norms."""
        matmuls = self._matmuls(node.ops)
        while True:
            inner = [c for c in node.children.values() if set(matmuls) <= set(c.ops)]
            if not inner or not self._mixing(inner[0]) >= self._mixing(node):
                break
            node = inner[0]
        return Part(node.fqn, matmuls, node.ops)

    def _complete_mixers(self) -> None:
        """Loose products that belong to a mixer: all around mixing that no module holds, or the output projection."""
        flow = self._flow
        if not self.mixers and flow.mixing:
            before = [m for m in self._loose if flow.reaches(m, flow.mixing)]
            if before:
                self.mixers.append(Part(None, before, sorted({*before, *flow.mixing})))
                self._loose = [m for m in self._loose if m not in before]
        for mixer in self.mixers:
            mixing = flow.mixing & set(mixer.ops)
            if any(flow.flows(x, m) and not flow.reaches(m, mixing) for m in mixer.matmuls for x in mixing):
                continue
            behind = [m for m in sorted(self._loose) if any(flow.flows(x, m) for x in mixing)]
            if behind:
                mixer.matmuls.append(behind[0])
                self._loose.remove(behind[0])

    def _gather_loose(self) -> None:
        loose = sorted(self._loose)
        if loose:
            self.feed_forwards.append(Part(None, loose, loose))

    def _matmuls(self, ops: list[int]) -> list[int]:
        inside = set(ops)
        return [m for m in self._flow.matmuls if m in inside]

    def _mixing(self, node: Node) -> set[int]:
        return self._flow.mixing & set(node.ops)
