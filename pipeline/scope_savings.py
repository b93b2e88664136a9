"""What scopes are expected to save: launches by arithmetic, and the whole effect by a simulated step. Modelled."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from models.workload import Kernel, Workload
from pipeline.figures import Figure
from pipeline.fusable import runs
from pipeline.scope_rows import Placed, ScopeMatch, by_name
from pipeline.scope_spans import Calls, fused_scope

if TYPE_CHECKING:
    from pipeline.simulator.machine import Machine
    from pipeline.simulator.parameters import Parameters

_DRAWS = 64
_BAND = (0.10, 0.90)


def with_savings(
    rows: Sequence[ScopeMatch], placed: Sequence[Placed], calls: Calls, machine: "Machine"
) -> tuple[ScopeMatch, ...]:
    """The rows with both savings; scopes that overlap are refused and have no step to simulate."""
    launches = launch_savings(placed, calls, machine)
    spans = sorted((p.span for p in placed), key=lambda s: s.enter)
    apart = all(not a.overlaps(b) for a, b in pairwise(spans))
    steps = step_savings(placed, calls.workload, machine) if apart else {}
    return tuple(replace(r, launch_saving=launches.get(r.name), step_saving=steps.get(r.name)) for r in rows)


def launch_savings(placed: Sequence[Placed], calls: Calls, machine: "Machine") -> dict[str, Figure]:
    """Name -> launch time that its scopes save, us per layer, with its band.

    A kernel that follows another one in its SuperKernel loses the smaller of `launch` and its fixed time, and the gap
    before it becomes `fused_gap`. Whether the step gets shorter by as much depends on what else runs.
    """
    draws = [machine.nominal(), *machine.draws(_DRAWS)]
    layers = max(1, calls.workload.layers)
    found = {}
    for name, members in by_name(placed).items():
        joined = {s: _joined(members, calls, s) for s in (False, True)}
        values = [_saved(joined[p["fusion"] > 0.5], p) / layers for p in draws]
        low, high = np.quantile(values[1:], _BAND)
        found[name] = Figure(values[0], "us", min(values[0], float(low)), max(values[0], float(high)))
    return found


def step_savings(placed: Sequence[Placed], workload: Workload, machine: "Machine") -> dict[str, Figure]:
    """Name -> what the nominal step gets shorter by its scopes alone, us per layer; negative is longer."""
    from pipeline.simulator.simulate import simulate

    nominal, layers = machine.nominal(), max(1, workload.layers)
    before = simulate(workload, [], nominal).time
    found = {}
    for name, members in by_name(placed).items():
        scopes = [fused_scope(p.scope, p.span) for p in members]
        found[name] = Figure((before - simulate(workload, [], nominal, scopes=scopes).time) / layers, "us")
    return found


def _joined(members: Sequence[Placed], calls: Calls, sometimes: bool) -> Mapping[tuple[str, str], int]:
    """(operator, engine) -> kernels that follow another one in their SuperKernel."""
    kernels: Sequence[Kernel] = calls.workload.kernels
    counts: dict[tuple[str, str], int] = {}
    for placed in members:
        for run in runs(calls.members(placed.span), sometimes):
            for index in run[1:]:
                what = kernels[index].op, kernels[index].engine
                counts[what] = counts.get(what, 0) + 1
    return counts


def _saved(joined: Mapping[tuple[str, str], int], p: "Parameters") -> float:
    gap = p["gap"] - p["fused_gap"]
    return sum(n * (min(p["launch"], p.fixed_us(op, engine)) + gap) for (op, engine), n in joined.items())
