"""Observed prefetch calls against the plan: the first deviation, in words."""

from torch import nn

from pipeline.verify.observation import Call, Identity, Observation, Step, same_bytes, same_value
from transforms.plan import Plan, Prefetch


def watched_modules(plan: Plan, module: nn.Module) -> set[str]:
    """The modules whose calls have to be followed: dependencies, and the weights' owners with all their parents."""
    watched = {p.dependency for p in plan.prefetch}
    for owner in {_owner(p.weight) for p in plan.prefetch}:
        while owner:
            watched.add(owner)
            owner = owner.rpartition(".")[0]
    return watched & {name for name, _ in module.named_modules(remove_duplicate=False)}


def deviation(plan: Plan, seen: Observation, decode_steps: int) -> str | None:
    """The first point at which the run with the switch on is not what was planned; None if it is.

    Args:
        plan: the plan, for the model that ran.
        seen: the run.
        decode_steps: how many decode steps must have been seen.
    """
    if len(seen.steps) != decode_steps + 1 or sum(s.decode for s in seen.steps) != decode_steps:
        kinds = ", ".join("decode" if s.decode else "prefill" for s in seen.steps) or "none"
        return f"expected one prefill and {decode_steps} decode steps of the whole model, saw: {kinds}"
    unknown = [p.weight for p in plan.prefetch if p.weight not in seen.parameters]
    if unknown:
        return f"the transformed model has no parameter {unknown[0]}, which the plan prefetches"
    if seen.stray:
        first = _words(seen.stray[0], None, seen)
        return f"{len(seen.stray)} prefetch call(s) outside the model's forward, the first: {first}"
    for step in seen.steps:
        if not step.decode and step.calls:
            first = _words(step.calls[0], step, seen)
            return f"prefill: {len(step.calls)} prefetch call(s), none must be there; the first: {first}"
    decode = [step for step in seen.steps if step.decode]
    for number, step in enumerate(decode, 1):
        found = _step(plan, step, seen)
        if found:
            return f"decode step {number}, {found}"
    return None


def _step(plan: Plan, step: Step, seen: Observation) -> str | None:
    total = len(plan.prefetch)
    if not step.calls and total:
        return f"no prefetch call was observed, {total} are planned, the first: {_planned(plan.prefetch[0])}"
    for position, (planned, call) in enumerate(zip(plan.prefetch, step.calls, strict=False)):
        differences = _differences(planned, position, call, step, seen)
        if differences:
            elsewhere = [
                p for p, other in enumerate(plan.prefetch) if not _differences(other, position, call, step, seen)
            ]
            hint = f" (this call is planned at position {elsewhere[0] + 1})" if elsewhere else ""
            return f"call {position + 1} of {total} ({planned.target}): {'; '.join(differences)}{hint}"
    if len(step.calls) < total:
        missing = plan.prefetch[len(step.calls)]
        return f"{len(step.calls)} prefetch calls, {total} are planned; the first that is missing: {_planned(missing)}"
    if len(step.calls) > total:
        extra = _words(step.calls[total], step, seen)
        return f"{len(step.calls)} prefetch calls, {total} are planned; the first that is too many: {extra}"
    return None


def _differences(planned: Prefetch, position: int, call: Call, step: Step, seen: Observation) -> list[str]:
    result = []
    weight = seen.parameters[planned.weight]
    if not same_bytes(weight, call.weight):
        result.append(f"weight: planned {planned.weight}, observed {_weight(call.weight, seen)}")
    expected = [p.returned if planned.port == "output" else p.received for p in step.of(planned.dependency)]
    if not any(same_value(e, call.dependency) for e in expected):
        got = _dependency(call.dependency, step)
        ran = "" if expected else " (that module was not called in this step)"
        result.append(f"dependency: planned {planned.dependency}:{planned.port}{ran}, observed {got}")
    for name in ("max_size", "offset"):
        want, have = getattr(planned, name), getattr(call, name)
        if want != have:
            result.append(f"{name}: planned {want}, observed {have} bytes")
    # Only a call that is otherwise right can be judged by its place relative to its own target.
    if not result and _too_late(planned, position, step):
        result.append(f"it was issued only after {planned.weight} had been read")
    return result


def _too_late(planned: Prefetch, position: int, step: Step) -> bool:
    """Every reader had started (a called owner) or ended (the nearest called parent of an owner that is not called).

    An owner that makes the dependency itself, and then reads a bare parameter of its own, must not have ended.
    """
    owner = _owner(planned.weight)
    passages = step.of(owner)
    if passages and not planned.dependency.startswith(f"{owner}."):
        return all(p.before_enter <= position for p in passages)
    while owner and not passages:
        owner = owner.rpartition(".")[0]
        passages = step.of(owner)
    return bool(passages) and all(p.before_exit <= position for p in passages)


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _planned(p: Prefetch) -> str:
    return f"{p.weight} after {p.dependency}:{p.port}, {p.max_size} bytes from {p.offset}"


def _words(call: Call, step: Step | None, seen: Observation) -> str:
    after = _dependency(call.dependency, step) if step else "outside any step"
    return f"{_weight(call.weight, seen)} after {after}, {call.max_size} bytes from {call.offset}"


def _weight(found: Identity, seen: Observation) -> str:
    names = [name for name, parameter in seen.parameters.items() if same_bytes(parameter, found)]
    if names:
        return names[0]
    parts = [name for name, parameter in seen.parameters.items() if parameter[0] == found[0]]
    return f"a part of {parts[0]}" if parts else "a tensor that is no parameter of the model"


def _dependency(found: Identity | None, step: Step) -> str:
    if found is None:
        return "no tensor"
    for check, note in ((same_value, ""), (same_bytes, " after it was changed in place")):
        for passage in step.passages:
            for port, value in (("output", passage.returned), ("input", passage.received)):
                if check(value, found):
                    return f"{passage.fqn}:{port}{note}"
    return "a tensor that none of the plan's modules received or returned in this step"
