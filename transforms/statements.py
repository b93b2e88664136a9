"""Where and how each prefetch of a plan is written: one statement for all layers that share it."""

import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from transforms.plan import Prefetch
from transforms.reaching import Link
from transforms.recording import Site
from transforms.telling import Mark

Where = Literal["before", "entry", "return", "after"]


@dataclass(frozen=True)
class Guard:
    """How the function tells decode from prefill.

    Attributes:
        kind: `entry`: by an expression that holds from its entry; `caller`: its caller can tell, and passes it on as
            an argument; `local`: by the shape of the dependency itself.
        test: the expression (of the caller's function); for `local`, what to append to the dependency.
    """

    kind: Literal["entry", "caller", "local"]
    test: str

    @property
    def manner(self) -> tuple[str, str]:
        """Equal for guards that are written in the same way into the function itself."""
        return self.kind, "" if self.kind == "caller" else self.test


@dataclass(frozen=True)
class Spot:
    """One place where an entry's call can be issued.

    Attributes:
        where: after / before the call at `site`; at the entry or the return of `function`, for calls made in a loop.
        function: qualified name of the function that is edited.
        site: the call expression, None for entry and return.
        port: which input or output of the call (of the function) the tensor is.
        owner: FQN of the instance that executes the function.
        child: name to build temporaries from, e.g. `gate_proj`.
        event: when, in events of the decode step.
        guard: the phase test.
    """

    where: Where
    function: str
    site: Site | None
    port: int | str | None
    owner: str
    child: str
    event: int
    guard: Guard

    @property
    def moment(self) -> tuple[int, int]:
        """Position in the step: what is inside a call comes after what is before it, and before what is after it."""
        return self.event, 1 if self.where in ("entry", "after") else 0

    @property
    def place(self) -> tuple[str, float, float, int]:
        """Position in the text. Calls end in the order in which Python evaluates them, also within one statement."""
        if self.site is None:
            line: float = 0 if self.where == "entry" else math.inf
            return self.function, line, 0, 0
        return self.function, self.site.end_line, self.site.end_column, 1 if self.where == "after" else 0


@dataclass(frozen=True)
class Statement:
    """One `npu_prefetch` statement, which all planned instances of a class share.

    Attributes:
        spot: of the first instance.
        weight: the expression.
        max_size, offset: bytes.
        conditions: nested `if`s around it.
        link, mark: what its conditions and its weight need in `__init__`.
        owners: FQNs of the instances.
        callers: (instance, phase test of the function that calls it), where the guard is the caller's.
        entries: the plan's entries that it realises.
    """

    spot: Spot
    weight: str
    max_size: int
    offset: int
    conditions: tuple[str, ...]
    link: Link | None
    mark: Mark | None
    owners: frozenset[str]
    callers: tuple[tuple[str, str], ...]
    entries: tuple[Prefetch, ...]


def in_order(placed: list[tuple[tuple[int, int], int]], count: int) -> list[int]:
    """The rank of each statement: those that are issued at one moment in the plan's order, in every layer.

    Args:
        placed: (moment, statement) of the plan's entries, in the plan's order.
        count: of the statements.
    """
    before: dict[int, set[int]] = {n: set() for n in range(count)}
    for (moment, one), (later, other) in pairwise(placed):
        if moment == later and one != other:
            before[other].add(one)
    ranked: list[int] = []
    while len(ranked) < count:
        left = [n for n in range(count) if n not in ranked]
        ranked.append(next((n for n in left if before[n] <= set(ranked)), left[0]))  # else: layers disagree
    return sorted(range(count), key=ranked.__getitem__)


def name_roles_apart(statements: list[Statement]) -> list[Statement]:
    """If two roles of a class prefetch the same weight differently, their marks are named after the roles.

    A role is named by its name in the parent or, where that is the same in parents of two classes, by the class, too.
    """
    meanings: dict[tuple[str, str], set[frozenset[str]]] = {}
    parents: dict[tuple[str, str, str], set[str]] = {}
    for s in statements:
        if s.mark:
            meanings.setdefault((s.spot.function, s.mark.name), set()).add(s.owners)
            parents.setdefault((s.spot.function, s.mark.name, s.mark.child), set()).add(s.mark.parent)
    result = []
    for s in statements:
        if s.mark and len(meanings[s.spot.function, s.mark.name]) > 1:
            several = len(parents[s.spot.function, s.mark.name, s.mark.child]) > 1
            parent = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", s.mark.parent).lower()
            child = f"{s.mark.child}_of_{parent}" if several else s.mark.child
            mark = replace(s.mark, name=f"{s.mark.name}_{child.replace('.', '_')}")
            conditions = tuple(f"self.{mark.name}" if c == f"self.{s.mark.name}" else c for c in s.conditions)
            s = replace(s, mark=mark, conditions=conditions)
        result.append(s)
    return result
