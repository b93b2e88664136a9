"""Scopes of a plan and a recording -> between which two calls of which function each goes. No text is read or written.

A scope is written into the one function that calls both its first and its last module. A module that is called deeper
may stand for its caller only if the caller computes nothing outside of it: nothing is called before the first (after
the last) one in there, and the caller passes on the very tensor. So a scope never becomes larger than planned.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from transforms.phase import NoPhase, length_test, phase_condition, sequence_dimension
from transforms.placing import in_loop, only_call
from transforms.plan import Plan, Scope
from transforms.reaching import where_present
from transforms.recording import Call, Recording
from transforms.refusals import ScopeRefusals
from transforms.statements import Guard
from transforms.telling import Mark, NotPlaceable, join, role, tell_by_type

INDEX_NAMES = ("layer_idx", "layer_id", "layer_index")


@dataclass(frozen=True)
class LayerIndex:
    """How an instance below a decoder layer knows which layer it is in.

    Attributes:
        name: attribute of the instance.
        holder: path of the instance below the layer (`""`: the layer itself).
        only_if: condition on `layer` under which a layer has such an instance.
        is_set: whether the class sets it already; else the owner of the layers has to.
    """

    name: str
    holder: str
    only_if: str = ""
    is_set: bool = False


@dataclass(frozen=True)
class ScopeStatement:
    """One `with superkernel_scope(...)`, which all planned instances of a class share.

    Attributes:
        first, last: the calls of the first instance.
        loop: whether its calls are made in a loop, which then is inside as a whole.
        guard: the phase test; for `local`, `test` is appended to the argument at `port` of the first call.
        port: see `guard`.
        label: expression.
        options: as the compiler gets them.
        conditions: further ones for the switch.
        mark, index: what its switch and its label need in `__init__`.
        owners: FQNs of the instances.
        entries: the plan's scopes that it realises.
        beside: calls of the same function, with whether the scope has to hold them.
    """

    first: Call
    last: Call
    loop: bool
    guard: Guard
    port: int | str | None
    label: str
    options: str
    conditions: tuple[str, ...]
    mark: Mark | None
    index: LayerIndex | None
    owners: frozenset[str]
    entries: tuple[Scope, ...]
    beside: tuple[tuple[Call, bool], ...]

    @property
    def function(self) -> str:
        assert self.first.site is not None
        return self.first.site.function


def place_scopes(recording: Recording, plan: Plan, refusals: ScopeRefusals) -> list[ScopeStatement]:
    """Find the two calls of every scope, and one statement for the scopes of all layers.

    Args:
        recording: the recorded run.
        plan: with the scopes.
        refusals: get every scope that can't be placed, and why.
    """
    groups: dict[object, list[tuple[Scope, Call, Call]]] = {}
    for scope in plan.scopes:
        try:
            first, last = _meet(recording, scope)
        except NotPlaceable as reason:
            refusals.add(scope, reason)
            continue
        groups.setdefault((first.site, last.site, scope.options), []).append((scope, first, last))
    statements = []
    for members in groups.values():
        try:
            statements.append(_statement(recording, members))
        except (NotPlaceable, NoPhase) as reason:
            for scope, _, _ in members:
                refusals.add(scope, reason)
    return statements


def _meet(recording: Recording, scope: Scope) -> tuple[Call, Call]:
    """The two calls, climbed until one function of one instance makes both."""
    first, last = only_call(recording, scope.first), only_call(recording, scope.last)
    if last.exit < first.exit or last.enter < first.enter:
        raise NotPlaceable(f"{scope.last} runs before {scope.first}")
    callers: set[str] = set()
    for one in _equal_callers(recording, first, leading=True):
        for other in _equal_callers(recording, last, leading=False):
            if one.parent is not other.parent or one.site is None or other.site is None:
                callers |= {c.parent.fqn if c.parent else "nothing" for c in (one, other)}
                continue
            if one.site.function != other.site.function:
                callers |= {one.site.function, other.site.function}
                continue
            return one, other
    if first.parent is last.parent:
        reason = "are not called by one function of the file"
        raise NotPlaceable(f"{scope.first} and {scope.last} {reason}: {', '.join(sorted(callers))}")
    near = _common_callers(first, last)
    hint = f"; one function calls {near[0].fqn} and {near[1].fqn}" if near else ""
    raise NotPlaceable(f"{scope.first} and {scope.last} are called by different modules{hint}")


def _equal_callers(recording: Recording, call: Call, leading: bool) -> list[Call]:
    """The call and the calls that it may stand for, innermost first."""
    found = [call]
    while (parent := call.parent) is not None:
        siblings = [c for c in recording.decode.calls if c.parent is parent]
        if leading:
            outermost = all(call.enter <= c.enter for c in siblings)
            tensors, passed = call.inputs, parent.inputs
        else:
            outermost = all(call.exit >= c.exit for c in siblings)
            tensors, passed = call.outputs, parent.outputs
        identities = {(t.key, t.version) for t in passed}
        if not outermost or not tensors or (tensors[0].key, tensors[0].version) not in identities:
            break
        call = parent
        found.append(call)
    return found


def _common_callers(first: Call, last: Call) -> tuple[Call, Call] | None:
    chain = []
    one: Call | None = first
    while one is not None:
        chain.append(one)
        one = one.parent
    other: Call | None = last
    while other is not None:
        for one in chain:
            if one.parent is other.parent and one.parent is not None:
                return one, other
        other = other.parent
    return None


def _statement(recording: Recording, members: Sequence[tuple[Scope, Call, Call]]) -> ScopeStatement:
    scopes = [scope for scope, _, _ in members]
    _, first, last = members[0]
    owners = [call.owner for _, call, _ in members if call.owner is not None]
    if len(set(owners)) < len(owners):
        others = " and ".join(scope.label for scope, call, _ in members if call.owner == first.owner)
        raise NotPlaceable(f"the scopes {others} would be one statement that runs several times")
    running = {c.owner for c in recording.decode.calls if c.site == first.site and c.owner is not None}
    conditions, mark = _conditions(recording, first, scopes[0], set(owners), running)
    guard, port = _guard(recording, first)
    label, index = _label(recording, scopes, owners)
    beside = tuple(
        (call, first.enter <= call.enter and call.exit <= last.exit)
        for call in recording.decode.calls
        if call.parent is first.parent and call.site is not None and call.site.function == _function(first)
    )
    return ScopeStatement(
        first,
        last,
        in_loop(recording, first) or in_loop(recording, last),
        guard,
        port,
        label,
        ":".join(f"{name}={value}" for name, value in scopes[0].options),
        conditions,
        mark,
        index,
        frozenset(owners),
        tuple(scopes),
        beside,
    )


def _function(call: Call) -> str:
    assert call.site is not None
    return call.site.function


def _conditions(
    recording: Recording, first: Call, scope: Scope, planned: set[str], running: set[str]
) -> tuple[tuple[str, ...], Mark | None]:
    """What must hold on an instance so that exactly the planned ones open the scope."""
    missing = running - planned
    if not missing:
        return (), None
    owner = first.owner or ""
    paths = [first.fqn[len(owner) + 1 :] if owner else first.fqn]
    paths += [name for name, _ in recording.modules[owner].named_children()]
    for path in paths:
        by_type = tell_by_type(recording, "self", f"{path}.", planned, missing)
        if by_type:
            return (by_type.text,), None
    stem = re.sub(r"\W|\d", "_", scope.label).strip("_") or "scope"
    mark = role(recording, f"superkernel_{re.sub('_+', '_', stem)}", planned, running)
    if mark is None:
        names = ", ".join(sorted(missing)[:3])
        raise NotPlaceable(f"{names} run the same statements, but have no such scope in the plan")
    return (f"self.{mark.name}",), mark


def _guard(recording: Recording, first: Call) -> tuple[Guard, int | str | None]:
    assert first.site is not None and first.parent is not None
    name = first.site.function
    function = recording.source.function(name, first.site.line)
    if function is None or name.count(".") != 1:
        raise NotPlaceable(f"{first.fqn} is called in {name}, which is not a method of a class in the file")
    try:
        return Guard("entry", phase_condition(recording, name, function)), None
    except NoPhase as reason:
        caller = first.parent
        if caller.site is not None and not in_loop(recording, caller) and name.endswith(".forward"):
            outer = recording.source.function(caller.site.function, caller.site.line)
            try:
                if outer is not None:
                    return Guard("caller", phase_condition(recording, caller.site.function, outer)), None
            except NoPhase:
                pass
        for tensor in first.inputs:
            prefill, decode = (
                [t.shape for c in step.by_module.get(first.fqn, []) for t in c.inputs if t.position == tensor.position]
                for step in (recording.prefill, recording.decode)
            )
            dimension = sequence_dimension(prefill, decode, recording.tokens)
            if dimension is not None:
                return Guard("local", length_test("", dimension, recording.tokens)), tensor.position
        raise reason


def _label(recording: Recording, scopes: Sequence[Scope], owners: Sequence[str]) -> tuple[str, LayerIndex | None]:
    """The label as an expression: `f"moe_{self.layer_idx}"`."""
    layers = join(recording.root, recording.layers)
    numbers = [_layer_of(owner, layers) for owner in owners]
    if len(scopes) == 1 and numbers[0] is None:
        return f'"{scopes[0].label}"', None
    if None in numbers:
        raise NotPlaceable(f"the label of {scopes[0].first} depends on the layer, which its caller is not in")
    pieces = [re.split(r"(\d+)", scope.label) for scope in scopes]
    if len({len(p) for p in pieces}) != 1:
        raise NotPlaceable(f"the labels {scopes[0].label} and {scopes[-1].label} are not alike")
    text, layered = "", False
    for column in zip(*pieces, strict=True):
        if all(part == str(number) for part, number in zip(column, numbers, strict=True)) and not (
            layered and len(scopes) == 1
        ):
            text, layered = text + "{i}", True
        elif len(set(column)) == 1:
            text += column[0]
        else:
            raise NotPlaceable(f"the labels {scopes[0].label} and {scopes[-1].label} differ in more than the layer")
    if not layered:
        if len(scopes) > 1:
            raise NotPlaceable(f"the label {scopes[0].label} is the same in several layers")
        return f'"{text}"', None
    index = _index(recording, owners, layers)
    return 'f"' + text.replace("{i}", f"{{self.{index.name}}}") + '"', index


def _layer_of(fqn: str, layers: str) -> int | None:
    rest = fqn.removeprefix(f"{layers}.") if fqn.startswith(f"{layers}.") else ""
    number = rest.partition(".")[0]
    return int(number) if number.isdigit() else None


def _index(recording: Recording, owners: Sequence[str], layers: str) -> LayerIndex:
    holders = {owner[len(layers) + 1 :].partition(".")[2] for owner in owners}
    if len(holders) != 1:
        raise NotPlaceable(f"{' and '.join(sorted(holders))} of a layer would open the same scope")
    holder = holders.pop()
    for name in INDEX_NAMES:
        values = [getattr(recording.modules[owner], name, None) for owner in owners]
        if all(value == _layer_of(owner, layers) for value, owner in zip(values, owners, strict=True)):
            return LayerIndex(name, holder, is_set=True)
    name = next(n for n in INDEX_NAMES if not any(hasattr(recording.modules[owner], n) for owner in owners))
    return LayerIndex(name, holder, where_present(recording, holder))
