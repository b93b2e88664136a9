"""A plan and a recording -> statements: at which call of which function each prefetch goes. No text is read or written.

For every entry there is a chain of *spots*, from the call that makes the dependency outwards: as long as the caller
returns (or was given) the very same tensor, not written since, the call can be issued there too. The preferred spot is
the first that has the weight below it, else the outermost; spots move inwards again where that would change the order.
"""

import inspect
from itertools import pairwise

from transforms.configuration import lacks_config
from transforms.phase import NoPhase, length_test, phase_condition, sequence_dimension
from transforms.plan import Plan, Prefetch
from transforms.reaching import Reach, condition, is_below, reach, shared_links
from transforms.recording import Call, Recording, Tensor
from transforms.refusals import Refusals
from transforms.statements import Guard, Spot, Statement, Where, in_order, name_roles_apart
from transforms.telling import NotPlaceable


def place(recording: Recording, plan: Plan) -> list[Statement]:
    """Find a statement for every entry of the plan, in the order in which they are written.

    Raises:
        RefusedError: with every entry that can't be placed, and why.
    """
    refusals = Refusals()
    chosen = _choose(recording, plan, refusals)
    statements = _statements(recording, plan, chosen, refusals)
    refusals.raise_if_any()
    return statements


def _choose(recording: Recording, plan: Plan, refusals: Refusals) -> dict[Prefetch, Spot]:
    """The spot of every entry, so that the moments follow the plan's order."""
    chains: dict[Prefetch, list[Spot]] = {}
    level: dict[Prefetch, int] = {}
    families: dict[object, list[Prefetch]] = {}
    for entry in plan.prefetch:
        try:
            chains[entry] = _spots(recording, entry)
        except NotPlaceable as reason:
            refusals.add(entry, reason)
            continue
        owners = [spot.owner for spot in chains[entry]]
        level[entry] = next((n for n, owner in enumerate(owners) if is_below(entry.weight, owner)), len(owners) - 1)
        spot = chains[entry][0]
        # The layers of one target move together, or they would not share a statement.
        families.setdefault((entry.target, spot.function, spot.site, spot.where, len(owners)), []).append(entry)
    family_of = {entry: members for members in families.values() for entry in members}
    order = list(chains)
    while True:
        moved = False
        for one, other in pairwise(order):
            if chains[one][level[one]].moment <= chains[other][level[other]].moment:
                continue
            # An output's call was moved later, or an input's earlier, than the plan has it.
            for entry in (one, other):
                moved_past = entry.port == ("output" if entry is one else "input")
                if moved_past and level[entry] > 0 and not moved:
                    moved = True
                    for member in family_of[entry]:
                        level[member] = max(0, level[member] - 1)
        if not moved:
            break
    chosen = {entry: chains[entry][level[entry]] for entry in order}
    for one, other in pairwise(order):
        if chosen[one].moment > chosen[other].moment:
            ports = [f"{e.dependency}:{e.port}" for e in (other, one)]
            refusals.add(other, f"{ports[0]} is reached before {ports[1]}, which the plan has first")
    return chosen


def _spots(recording: Recording, entry: Prefetch) -> list[Spot]:
    """Usable spots from the innermost outwards.

    Raises:
        NotPlaceable: there is none; says why for each.
    """
    if entry.weight not in recording.parameters:
        raise NotPlaceable(f"the model has no parameter {entry.weight}")
    call = only_call(recording, entry.dependency)
    tensor = next(iter(call.inputs if entry.port == "input" else call.outputs), None)
    if tensor is None:
        raise NotPlaceable(f"the {entry.port} of {entry.dependency} is no tensor")
    spots: list[Spot] = []
    reasons: list[str] = []
    while True:
        try:
            spots.append(_spot(recording, entry, call, tensor))
        except (NotPlaceable, NoPhase) as reason:
            reasons.append(str(reason))
        parent = call.parent
        if parent is None or in_loop(recording, call):
            break
        ports = parent.inputs if entry.port == "input" else parent.outputs
        same = next((t for t in ports if (t.key, t.version) == (tensor.key, tensor.version)), None)
        if same is None:
            break
        call, tensor = parent, same
    if not spots:
        raise NotPlaceable("; ".join(dict.fromkeys(reasons)))
    return spots


def only_call(recording: Recording, fqn: str) -> Call:
    """The only call of a module in a decode step."""
    calls = recording.decode.by_module.get(fqn, [])
    if fqn not in recording.modules:
        raise NotPlaceable(f"the model has no module {fqn}")
    if not calls:
        raise NotPlaceable(f"{fqn} is never called in a decode step (its weight may be read directly)")
    if len(calls) > 1:
        raise NotPlaceable(f"{fqn} is called {len(calls)} times in a decode step")
    return calls[0]


def in_loop(recording: Recording, call: Call) -> bool:
    """Whether its caller runs the call expression several times in one step."""
    return call.site is not None and len(recording.decode.by_site[call.site, call.owner]) > 1


def _spot(recording: Recording, entry: Prefetch, call: Call, tensor: Tensor) -> Spot:
    event = call.enter if entry.port == "input" else call.exit
    child = next((part for part in reversed(call.fqn.split(".")) if part.isidentifier()), "model")
    if not in_loop(recording, call):
        if call.site is None or call.owner is None:
            raise NotPlaceable(f"{call.fqn} is not called in {recording.source.path.name}")
        where: Where = "before" if entry.port == "input" else "after"
        guard = _guard(recording, call.site.function, call.site.line, tensor, call)
        return Spot(where, call.site.function, call.site, tensor.position, call.owner, child, event, guard)
    cls = recording.class_of(call.fqn)
    name = _forward(recording, call.fqn)
    if not recording.in_file(cls) or name not in recording.source.functions:
        raise NotPlaceable(f"{call.fqn} is called in a loop, and its class is not in {recording.source.path.name}")
    guard = _guard(recording, name, None, tensor, call)
    where = "entry" if entry.port == "input" else "return"
    return Spot(where, name, None, tensor.position, call.fqn, "output", event, guard)


def _guard(recording: Recording, name: str, line: int | None, tensor: Tensor, call: Call) -> Guard:
    """The phase test of the function that will hold the statement.

    Args:
        recording: the recorded run.
        name, line: the function; no line: the function is the called module's own.
        tensor: the dependency.
        call: the call that makes it.
    """
    instance = (call.fqn if line is None else call.owner) or ""
    switchless = lacks_config(recording, name, [instance])
    reason: Exception = NotPlaceable(switchless)
    try:
        test = _entry_test(recording, name, line, call)
        if not switchless:
            return Guard("entry", test)
    except NoPhase as no_phase:
        reason = no_phase
        prefill, decode = (
            [t.shape for c in step.by_module.get(call.fqn, []) for t in c.outputs if t.position == tensor.position]
            for step in (recording.prefill, recording.decode)
        )
        dimension = sequence_dimension(prefill, decode, recording.tokens)
        if dimension is not None and line is not None and tensor in call.outputs and not switchless:
            return Guard("local", length_test("", dimension, recording.tokens))
    owner = call if line is None else call.parent
    if owner is None or owner.site is None or in_loop(recording, owner) or not name.endswith(".forward"):
        raise reason
    others = {_forward(recording, c.fqn) for c in recording.decode.calls if c.site == owner.site} - {name}
    if others:
        raise NoPhase(f"{reason}; the statement that calls it calls {min(others)}, too")
    if lacks_config(recording, owner.site.function, [owner.owner or ""]):
        raise reason
    try:
        return Guard("caller", _entry_test(recording, owner.site.function, owner.site.line, owner))
    except NoPhase:
        raise reason from None


def _entry_test(recording: Recording, name: str, line: int | None, call: Call) -> str:
    if "<locals>" in name:
        raise NotPlaceable(f"{call.fqn} is called in a comprehension, lambda or inner function")
    function = recording.source.function(name, line)
    if function is None or name.count(".") != 1:
        raise NotPlaceable(f"{name} is not a method of a class in {recording.source.path.name}")
    return phase_condition(recording, name, function)


def _statements(recording: Recording, plan: Plan, chosen: dict[Prefetch, Spot], refusals: Refusals) -> list[Statement]:
    groups: dict[object, list[tuple[Prefetch, Spot, Reach]]] = {}
    shared = shared_links(recording, [(s.owner, e.weight, (e.max_size, e.offset)) for e, s in chosen.items()])
    for entry, spot in chosen.items():
        try:
            reached = reach(recording, spot.owner, entry.weight, shared)
        except NotPlaceable as reason:
            refusals.add(entry, reason)
            continue
        place = (spot.where, spot.function, spot.site, spot.port, spot.guard.manner)
        groups.setdefault((place, reached, entry.max_size, entry.offset), []).append((entry, spot, reached))
    statements: list[Statement] = []
    moments: dict[Prefetch, tuple[tuple[int, int], int]] = {}
    for members in groups.values():
        entry, spot, reached = members[0]
        owners = {s.owner for _, s, _ in members}
        try:
            conditions, mark = condition(recording, reached, owners, _running(recording, spot), spot.site)
        except NotPlaceable as reason:
            for entry, _, _ in members:
                refusals.add(entry, reason)
            continue
        moments.update({e: (s.moment, len(statements)) for e, s, _ in members})
        statements.append(
            Statement(
                spot,
                reached.text,
                entry.max_size,
                entry.offset,
                conditions,
                reached.link,
                mark,
                frozenset(owners),
                tuple(sorted((s.owner, s.guard.test) for _, s, _ in members if s.guard.kind == "caller")),
                tuple(e for e, _, _ in members),
            )
        )
    placed = [entry for entry in plan.prefetch if entry in moments]
    order = in_order([moments[entry] for entry in placed], len(statements))
    for one, other in pairwise(placed):
        if (moments[one][0], order[moments[one][1]]) > (moments[other][0], order[moments[other][1]]):
            refusals.add(other, f"the plan has {one.target} first in this layer, but {other.target} in another layer")
    return name_roles_apart([statements[n] for n in sorted(range(len(statements)), key=order.__getitem__)])


def _running(recording: Recording, spot: Spot) -> set[str]:
    """FQNs of all instances that run the statement in a decode step."""
    if spot.site is not None:
        return {call.owner for call in recording.decode.calls if call.site == spot.site and call.owner is not None}
    return {call.fqn for call in recording.decode.calls if _forward(recording, call.fqn) == spot.function}


def _forward(recording: Recording, fqn: str) -> str:
    """Qualified name of what runs when a module is called."""
    return inspect.unwrap(recording.class_of(fqn).forward).__qualname__  # type: ignore[attr-defined]
