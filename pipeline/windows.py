"""A plan on the time axis: its copies, its windows, and how many bytes wait in L2."""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from models.workload import Workload
from pipeline.legality import Flow, Placement
from transforms.plan import Plan, Prefetch

if TYPE_CHECKING:
    from pipeline.simulator.copies import Copy
    from pipeline.simulator.simulate import StepResult


def placements_of(plan: Plan, workload: Workload) -> list[Placement]:
    """Where each entry of a plan is issued and what reads it.

    Raises:
        ValueError: the plan was made for another model or deployment: a dependency is not called, or nothing reads a
            weight.
    """
    flow = Flow(workload)
    return [_placement(entry, flow) for entry in plan.prefetch]


def copies_of(plan: Plan, workload: Workload) -> list["Copy"]:
    """The plan as the simulator wants it, in issue order.

    Raises:
        ValueError: as `placements_of`.
    """
    from pipeline.simulator.copies import Copy

    return [
        Copy(weight=entry.weight, after=place.producer, size=entry.max_size, offset=entry.offset)
        for entry, place in zip(plan.prefetch, placements_of(plan, workload), strict=True)
    ]


def windows(plan: Plan, workload: Workload, step: "StepResult") -> tuple[float, ...]:
    """Time from the dependency's end to the target kernel's start, us, per entry of the plan.

    Args:
        plan: the plan.
        workload: the step that it was made for.
        step: a simulated (or replayed) step of this workload, without or with the plan's copies.
    """
    return tuple(float(step.starts[p.reader] - step.ends[p.producer]) for p in placements_of(plan, workload))


def in_flight(placements: Sequence[Placement], sizes: Sequence[int], kernels: int) -> tuple[list[int], int]:
    """Bytes copied (or being copied) but not read yet, in program order.

    A copy counts from the kernel after its dependency up to its reader. Streams run in parallel, so program order is an
    approximation; it needs no machine.

    Args:
        placements, sizes: producer, reader and bytes of each copy.
        kernels: number of kernels of the step.

    Returns:
        Per copy the most bytes waiting while it waits, and the most at any point.
    """
    change = [0] * (kernels + 2)
    for place, size in zip(placements, sizes, strict=True):
        change[place.producer + 1] += size
        change[place.reader + 1] -= size
    waiting = list(accumulate(change))
    most = [max(waiting[p.producer + 1 : p.reader + 1], default=0) for p in placements]
    return most, max(waiting)


def _placement(entry: Prefetch, flow: Flow) -> Placement:
    call = flow.call(entry.dependency)
    reader = flow.reader(entry.weight)
    producer = flow.producer(call, entry.port) if call is not None else None
    if call is None or producer is None:
        raise ValueError(
            f"{entry.dependency}:{entry.port} produces nothing in this workload: the plan is for another one"
        )
    if reader is None:
        raise ValueError(f"no kernel of this workload reads {entry.weight}: the plan is for another one")
    return Placement(flow.event(call, entry.port), producer, reader)
