"""Which weight of a mixer or a feed-forward is which, by the data flow between them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from models.feed_forwards import FeedForward, FeedForwards
from models.layer_flow import LayerFlow
from models.layer_parts import LayerParts, Part
from models.operations import OperationCall

_NORMS = {"rsqrt", "sqrt", "native_layer_norm", "_fused_rms_norm", "native_group_norm", "std", "var", "var_mean"}
_NORMS |= {"linalg_vector_norm"}


@dataclass
class Assignment:
    """Roles of one layer, filled by `assign`.

    Attributes:
        flow: the layer.
        name: parameter -> how a recipe names it.
        shapes: parameter -> shape.
        names: role -> names in execution order.
        parts: name -> number of its mixer or feed-forward.
    """

    flow: LayerFlow
    name: Callable[[str], str]
    shapes: Mapping[str, tuple[int, ...]]
    names: dict[str, list[str]] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)

    def assign(self, parts: LayerParts) -> None:
        outs: list[int] = []
        for number, mixer in enumerate(parts.mixers):
            outs += self._mixer(mixer, number)
        inside = {k for mixer in parts.mixers for k in mixer.ops}
        outside = [k for k in range(len(self.flow.operations)) if k not in inside]
        found = FeedForwards(self.flow, parts.feed_forwards, outs, outside, self.shapes).all
        for number, each in enumerate(found):
            self._feed_forward(each, number)
        groups = [("mixer", part, part.matmuls) for part in parts.mixers]
        groups += [("feed_forward", each.part, each.matmuls) for each in found]
        self._norms(groups)
        self._before([each.matmuls for each in found], outs)

    # --- mixers ------------------------------------------------------------------------------------------------

    def _mixer(self, part: Part, number: int) -> list[int]:
        """Assign the roles of a mixer; its output projections."""
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
        return out

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
            past = not flow.without(softmaxes, m, max(out)).isdisjoint(out)
            role = {(True, False, False): "q", (True, True, False): "k", (False, True, True): "v"}.get(
                (scored, kept, past)
            )
            if role:
                self._add_weights(f"attention.{role}", m, number)

    # --- feed-forwards -----------------------------------------------------------------------------------------

    def _feed_forward(self, found: FeedForward, number: int) -> None:
        names = [found.part.fqn] if found.part.fqn is not None else []
        names = names or [self.name(w) for m in found.matmuls for w in self.flow.weights_of[m]]
        for name in names:
            self._add("feed_forward", name, number)
        for m in found.routers:
            self._add_weights("moe.router", m, number)
        experts = self.flow.bits_of(found.experts)
        for m in found.experts:
            first = not self.flow.follows(m, experts)
            self._add_weights(f"moe.experts.{'up' if first else 'down'}", m, number)
        prefix = "moe.shared" if found.experts else "mlp"
        for block in found.blocks:
            for u in block.ups:
                self._add_weights(f"{prefix}.{'gate' if u in block.gates else 'up'}", u, number)
            for d in block.downs:
                self._add_weights(f"{prefix}.down", d, number)

    # --- norms -------------------------------------------------------------------------------------------------

    def _norms(self, groups: Sequence[tuple[str, Part, list[int]]]) -> None:
        """Norms whose result goes into a part, and those of a part's result that go into none."""
        flow = self.flow
        inside = {k for _, part, _ in groups for k in part.ops}
        norms = [call for call in flow.calls if self._is_norm(ops := self._ops(call)) and inside.isdisjoint(ops)]
        for role, _, matmuls in groups:
            sources = {source for m in matmuls for source in flow.sources(m)}
            for call in norms:
                if call.outputs in sources:
                    self._add(f"norm.{role}", call.fqn)
        before = {name for role, names in self.names.items() if role.startswith("norm.") for name in names}
        for role, part, matmuls in groups:
            results = {c.outputs for c in flow.calls if c.fqn == part.fqn}
            results.add(frozenset((flow.operations[matmuls[-1]].index,)))
            for call in norms:
                if call.inputs in results and call.fqn not in before:
                    self._add(f"norm.{role}_out", call.fqn)

    def _before(self, feed_forwards: Sequence[list[int]], outs: Sequence[int]) -> None:
        """What ends last before each feed-forward begins, norms aside."""
        flow = self.flow
        for matmuls in feed_forwards:
            found = [self.name(w) for m in outs if flow.flows(m, matmuls[0]) for w in flow.weights_of[m]]
            if not found:
                sources = {source for m in matmuls for source in flow.sources(m)}
                calls = (call for call in flow.calls if call.outputs in sources)
                found = [call.fqn for call in calls if call.fqn in self.names.get("norm.feed_forward", ())]
            if found:
                self._add("feed_forward.before", found[-1])

    def _ops(self, call: OperationCall) -> list[int]:
        return self.flow.inner(range(call.first, call.last))

    def _is_norm(self, ops: Iterable[int]) -> bool:
        names = {self.flow.operations[k].name for k in ops}
        norm = not names.isdisjoint(_NORMS) or {"pow", "mean"} <= names  # the square of x, its mean to the power -1/2
        return norm and not any(self.flow.operations[k].is_product for k in ops)

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
