"""What a scope covers: which calls and which kernels lie between its first and its last module."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from models.workload import Kernel, ModuleCall, Workload
from transforms.plan import Plan, Scope

if TYPE_CHECKING:
    from pipeline.simulator.fusion import FusedScope


@dataclass(frozen=True)
class Span:
    """Everything from entering the first to leaving the last module.

    Attributes:
        enter, exit: event numbers.
        kernels: range of kernel indices; empty if none is launched.
    """

    enter: int
    exit: int
    kernels: range

    def overlaps(self, other: "Span") -> bool:
        return self.enter < other.exit and other.enter < self.exit

    def holds(self, event: int) -> bool:
        """Whether something issued at this event is inside: before entering the first module it is not, nor is it
        after leaving the last."""
        return self.enter < event < self.exit


class Calls:
    """The module calls of one decode step, indexed for questions about scopes."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def one(self, fqn: str) -> ModuleCall | None:
        """The call of a module that is called once."""
        calls = self.workload.calls.get(fqn, ())
        return calls[0] if len(calls) == 1 else None

    def caller(self, fqn: str) -> str | None:
        """The module whose forward calls this one: the nearest enclosing one that is called; None for the outermost."""
        if not fqn:
            return None
        parent = fqn.rpartition(".")[0]
        while parent and parent not in self.workload.calls:
            parent = parent.rpartition(".")[0]
        return parent if parent in self.workload.calls else None

    def children(self, fqn: str) -> Sequence[str]:
        """Modules that this one's forward calls once each, in the order of the calls."""
        return self._children.get(fqn, ())

    def kernels(self, fqn: str) -> range:
        """Kernels launched below a module, first to last."""
        low, high = self._ranges.get(fqn, (0, -1))
        return range(low, high + 1)

    def span(self, first: str, last: str) -> Span | None:
        """The span of two modules that are called once, the last not before the first; else None."""
        begin, end = self.one(first), self.one(last)
        if begin is None or end is None or end.enter < begin.enter or end.exit < begin.exit:
            return None
        caller = self.caller(first)
        siblings = self.children(caller) if caller is not None and caller == self.caller(last) else (first, last)
        inside = [self.kernels(s) for s in siblings if self._within(s, begin, end) and len(self.kernels(s))]
        if not inside:
            return Span(begin.enter, end.exit, range(0))
        # Program order: what the caller itself launches in between is part of it.
        return Span(begin.enter, end.exit, range(min(r.start for r in inside), max(r.stop for r in inside)))

    def members(self, span: Span) -> Sequence[Kernel]:
        return self.workload.kernels[span.kernels.start : span.kernels.stop]

    def _within(self, fqn: str, begin: ModuleCall, end: ModuleCall) -> bool:
        call = self.one(fqn)
        return call is not None and begin.enter <= call.enter and call.exit <= end.exit

    @cached_property
    def _ranges(self) -> Mapping[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for kernel in self.workload.kernels:
            name = kernel.module
            while True:
                low, high = found.get(name, (kernel.index, kernel.index))
                found[name] = (min(low, kernel.index), max(high, kernel.index))
                if not name:
                    break
                name = name.rpartition(".")[0]
        return found

    @cached_property
    def _children(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for fqn, calls in self.workload.calls.items():
            caller = self.caller(fqn)
            if caller is not None and len(calls) == 1:
                found.setdefault(caller, []).append(fqn)
        for children in found.values():
            children.sort(key=lambda n: self.workload.calls[n][0].enter)
        return found


def fused_scopes(plan: Plan, workload: Workload) -> list["FusedScope"]:
    """The plan's scopes as the simulator wants them, in execution order.

    Raises:
        ValueError: the plan was made for another model or deployment: a scope's module is not called once.
    """
    calls, found = Calls(workload), []
    for scope in plan.scopes:
        span = calls.span(scope.first, scope.last)
        if span is None:
            raise ValueError(f"scope {scope.label} ({scope.first} to {scope.last}) is not in this workload")
        found.append(fused_scope(scope, span))
    return found


def fused_scope(scope: Scope, span: Span) -> "FusedScope":
    """One scope as the simulator wants it."""
    from pipeline.simulator.fusion import FusedScope

    return FusedScope(span.kernels, dict(scope.options).get("stream-fusion") == "1")
