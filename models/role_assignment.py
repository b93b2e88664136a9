"""Which weight of a mixer or a feed-forward is which, by the data flow between them."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from models.layer_flow import LayerFlow
from models.layer_parts import LayerParts, Part
from models.operations import OperationCall

_NONLINEAR = {"silu", "gelu", "sigmoid", "log_sigmoid", "tanh", "relu", "relu6", "leaky_relu", "elu", "celu", "selu"}
_NONLINEAR |= {"mish", "hardswish", "hardtanh", "hardsigmoid", "softplus", "threshold", "pow", "square", "exp", "erf"}
_NONLINEAR |= {"_softmax"}
_CHOICE = ("topk", "argmax", "sort", "argsort")
_NORMS = {"rsqrt", "sqrt", "native_layer_norm", "_fused_rms_norm", "native_group_norm", "std", "var", "var_mean"}
_NORMS |= {"linalg_vector_norm"}
# A stack of experts has a dimension for them.
_STACK = 3


@dataclass
class Block:
    """Weights of one feed-forward: those that read its input, and those behind them."""

    ups: list[int]
    downs: list[int]


@dataclass
class Assignment:
    """Roles of one layer, filled by `assign`.

    Attributes:
        flow: the layer.
        name: parameter -> how a recipe names it.
        stacks: parameters with three or more dimensions.
        names: role -> names in execution order.
        parts: name -> number of its mixer or feed-forward.
    """

    flow: LayerFlow
    name: Callable[[str], str]
    stacks: frozenset[str] = frozenset()
    names: dict[str, list[str]] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)

    def assign(self, parts: LayerParts) -> None:
        for number, mixer in enumerate(parts.mixers):
            self._mixer(mixer, number)
        inside = {k for mixer in parts.mixers for k in mixer.ops}
        choices = [k for k in self.flow.named(*_CHOICE) if k not in inside]
        routers = self._routers([m for p in parts.feed_forwards for m in p.matmuls], choices)
        for number, part in enumerate(parts.feed_forwards):
            self._feed_forward(part, number, routers, choices)
        self._norms(parts)
        self._before(parts)

    # --- mixers ------------------------------------------------------------------------------------------------

    def _mixer(self, part: Part, number: int) -> None:
        flow, matmuls = self.flow, part.matmuls
        if part.fqn is not None:
            self._add("mixer", part.fqn, number)
        mixing = flow.mixing & set(part.ops)
        behind = [m for m in matmuls if any(flow.flows(x, m) for x in mixing) and not flow.reaches(m, mixing)]
        out = [m for m in behind if not flow.reaches(m, behind)]
        first = [m for m in matmuls if m not in behind and not any(flow.flows(a, m) for a in matmuls)]
        for m in matmuls:
            role = "attention.out" if m in out else "attention.in" if m in first else "attention.inner"
            known = {n for r in ("attention.in", "attention.inner", "attention.out") for n in self.names.get(r, ())}
            self._add_weights(role, m, number, known)
        self._queries_keys_values([m for m in matmuls if m not in behind], out, part, number)

    def _queries_keys_values(self, matmuls: list[int], out: list[int], part: Part, number: int) -> None:
        """Keys and values go into the cache; of all, only values reach the output past the softmax."""
        flow = self.flow
        inside = set(part.ops)
        softmaxes = [s for s in flow.softmaxes if s in inside]
        written = [k for k in flow.stateful if k in inside and not flow.operations[k].is_product]
        if not softmaxes or not written or not out:
            return
        for m in matmuls:
            scored, kept = flow.reaches(m, softmaxes), flow.reaches(m, written)
            past = not flow.without(softmaxes, m).isdisjoint(out)
            role = {(True, False, False): "q", (True, True, False): "k", (False, True, True): "v"}.get(
                (scored, kept, past)
            )
            if role:
                self._add_weights(f"attention.{role}", m, number)

    # --- feed-forwards -----------------------------------------------------------------------------------------

    def _routers(self, matmuls: list[int], choices: list[int]) -> set[int]:
        """Products whose scores a top-k chooses from."""
        found: set[int] = set()
        for choice in choices:
            before = [m for m in matmuls if self.flow.flows(m, choice) and not self._of_stack(m)]
            found |= {m for m in before if not self.flow.reaches(m, before)}
        return found

    def _feed_forward(self, part: Part, number: int, routers: set[int], choices: list[int]) -> None:
        flow = self.flow
        mine = [m for m in part.matmuls if m in routers]
        experts = [m for m in part.matmuls if self._is_expert(m, part, choices)]
        rest = [m for m in part.matmuls if m not in mine and m not in experts]
        if part.fqn is not None:
            self._add("feed_forward", part.fqn, number)
        for m in mine:
            self._add_weights("moe.router", m, number)
        for m in experts:
            first = not any(flow.flows(e, m) for e in experts)
            self._add_weights(f"moe.experts.{'up' if first else 'down'}", m, number)
        prefix = "moe.shared" if experts and mine else "mlp"
        # Projections into and out of a space that only experts work in are no expert of their own.
        rest = [m for m in rest if not experts or not (flow.reaches(m, experts) or flow.reaches(experts[0], [m]))]
        for block in self._blocks(rest):
            self._block(block, prefix, part, number)

    def _is_expert(self, m: int, part: Part, choices: list[int]) -> bool:
        if self._of_stack(m):
            return True
        prefix = f"{part.fqn}." if part.fqn is not None else f"{self.flow.fqn}."
        listed = any(any(s.isdecimal() for s in w.removeprefix(prefix).split(".")) for w in self.flow.weights_of[m])
        return part.fqn is not None and listed and any(self.flow.flows(c, m) for c in choices)

    def _of_stack(self, m: int) -> bool:
        return any(w in self.stacks for w in self.flow.weights_of[m])

    def _blocks(self, matmuls: list[int]) -> list[Block]:
        blocks: list[Block] = []
        for m in matmuls:
            last = blocks[-1] if blocks else None
            if last is None or any(self.flow.flows(d, m) for d in last.downs):
                blocks.append(Block([m], []))
            elif any(self.flow.flows(u, m) for u in last.ups):
                last.downs.append(m)
            else:
                last.ups.append(m)
        return [Block([u for u in b.ups if self.flow.reaches(u, b.downs)], b.downs) for b in blocks if b.downs]

    def _block(self, block: Block, prefix: str, part: Part, number: int) -> None:
        gates = self._gates(block)
        for u in block.ups:
            self._add_weights(f"{prefix}.{'gate' if u in gates else 'up'}", u, number)
        for d in block.downs:
            self._add_weights(f"{prefix}.down", d, number)
        if part.fqn is None:
            for m in (*block.ups, *block.downs):
                for weight in self.flow.weights_of[m]:
                    self._add("feed_forward", self.name(weight), number)

    def _gates(self, block: Block) -> set[int]:
        """Of several first products, those that pass a nonlinearity before they meet another."""
        flow, ups = self.flow, block.ups
        if len(ups) < 2:
            return set()
        last = block.downs[0]
        meeting = next((k for k in range(ups[-1] + 1, last + 1) if sum(flow.flows(u, k) for u in ups) >= 2), last)
        gates = {u for u in ups if any(flow.operations[k].name in _NONLINEAR for k in flow.between(u, meeting))}
        return gates if len(gates) < len(ups) else set()

    # --- norms -------------------------------------------------------------------------------------------------

    def _norms(self, parts: LayerParts) -> None:
        """Norms whose result goes into a part, and those of a part's result that go into none."""
        flow = self.flow
        groups = [("mixer", p) for p in parts.mixers] + [("feed_forward", p) for p in parts.feed_forwards]
        inside = {k for _, part in groups for k in part.ops}
        norms = [call for call in flow.calls if self._is_norm(ops := self._ops(call)) and inside.isdisjoint(ops)]
        for role, part in groups:
            sources = {source for m in part.matmuls for source in flow.sources(m)}
            for call in norms:
                if call.outputs in sources:
                    self._add(f"norm.{role}", call.fqn)
        before = {name for role, names in self.names.items() if role.startswith("norm.") for name in names}
        for role, part in groups:
            results = {c.outputs for c in flow.calls if c.fqn == part.fqn}
            results.add(frozenset((flow.operations[part.matmuls[-1]].index,)))
            for call in norms:
                if call.inputs in results and call.fqn not in before:
                    self._add(f"norm.{role}_out", call.fqn)

    def _before(self, parts: LayerParts) -> None:
        """What ends last before each feed-forward begins, norms aside."""
        flow = self.flow
        outs = [(m, w) for p in parts.mixers for m in p.matmuls for w in flow.weights_of[m]]
        outs = [(m, w) for m, w in outs if self.name(w) in self.names.get("attention.out", ())]
        for part in parts.feed_forwards:
            found = [self.name(w) for m, w in outs if flow.flows(m, part.matmuls[0])]
            if not found:
                sources = {source for m in part.matmuls for source in flow.sources(m)}
                calls = (call for call in flow.calls if call.outputs in sources)
                found = [call.fqn for call in calls if call.fqn in self.names.get("norm.feed_forward", ())]
            if found:
                self._add("feed_forward.before", found[-1])

    def _ops(self, call: OperationCall) -> list[int]:
        return self.flow.inner(range(call.first, call.last))

    def _is_norm(self, ops: Iterable[int]) -> bool:
        names = {self.flow.operations[k].name for k in ops}
        return not names.isdisjoint(_NORMS) and not any(self.flow.operations[k].is_product for k in ops)

    # --- names -------------------------------------------------------------------------------------------------

    def _add_weights(self, role: str, matmul: int, number: int, known: Collection[str] = ()) -> None:
        for weight in self.flow.weights_of[matmul]:
            if self.name(weight) not in known:
                self._add(role, self.name(weight), number)

    def _add(self, role: str, name: str, number: int | None = None) -> None:
        names = self.names.setdefault(role, [])
        if name not in names:
            names.append(name)
        if number is not None:
            self.parts.setdefault(name, number)
