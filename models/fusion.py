"""Merges kernels of a traced step: what one fused operator of the NPU does, a model in plain PyTorch does in several.

A merge never loses anything: the weights, the operations and the bytes from and to the outside stay; only what goes
from one member to another, and to nobody else, is no longer moved. `models.fusion_rules` says what to merge.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from models.reads import ActivationRead
from models.workload import Engine, Kernel, ModuleCall, WeightRead


@dataclass(frozen=True)
class Launch:
    """A kernel of the trace with what a merge must know.

    Attributes:
        kernel: its `index` is the position in the graph.
        path: the module calls around it, outermost first, each by the event number of its start.
        reads: activations that it reads, by view.
        written: bytes of its results.
        glue: whether it is an aten op (or merged ones), so that nobody has said yet what it is.
    """

    kernel: Kernel
    path: tuple[int, ...]
    reads: Mapping[tuple, ActivationRead] = field(default_factory=dict)
    written: int = 0
    glue: bool = False


@dataclass(frozen=True)
class Group:
    """Kernels to merge: members, the name of what they become, and the member that gives module and layer."""

    members: frozenset[int]
    op: str
    anchor: int


class Graph:
    """Launches in program order with their data flow."""

    def __init__(self, launches: Iterable[Launch]) -> None:
        self.launches = list(launches)

    def __len__(self) -> int:
        return len(self.launches)

    def kernel(self, index: int) -> Kernel:
        return self.launches[index].kernel

    @cached_property
    def consumers(self) -> list[set[int]]:
        found: list[set[int]] = [set() for _ in self.launches]
        for launch in self.launches:
            for source in launch.kernel.inputs:
                found[source].add(launch.kernel.index)
        return found

    def is_convex(self, members: frozenset[int]) -> bool:
        """Whether nothing outside stands between two members in the data flow: then they can be one kernel."""
        reached: set[int] = set()  # outside, after a member
        last = max(members)
        for index in range(min(members) + 1, last + 1):
            sources = self.kernel(index).inputs
            if index in members:
                if any(s in reached for s in sources):
                    return False
            elif any(s in members or s in reached for s in sources):
                reached.add(index)
        return True

    def merged(self, groups: Iterable[Group]) -> tuple["Graph", list[int]]:
        """Merge groups; one that shares a member with an earlier one, or is not convex, is left as it is.

        Returns:
            The new graph and, for each old index, the new one.
        """
        owner: dict[int, Group] = {}
        for group in groups:
            taken = any(m in owner for m in group.members)
            if len(group.members) > 1 and not taken and self.is_convex(group.members):
                owner.update(dict.fromkeys(group.members, group))
        while True:
            order, stuck = self._order(owner)
            if not stuck:
                break
            for index in stuck:  # two groups that wait for each other: both stay as they were
                owner.pop(index, None)
            alive = {id(g): g.members for g in owner.values()}
            owner = {i: g for i, g in owner.items() if all(m in owner for m in alive[id(g)])}
        position = {key: new for new, key in enumerate(order)}
        new_index = [position[self._key(owner, i)] for i in range(len(self))]
        launches = []
        for new, key in enumerate(order):
            members = owner[key].members if key in owner else frozenset((key,))
            launches.append(self._one(members, owner.get(key), new, new_index))
        return Graph(launches), new_index

    @staticmethod
    def _key(owner: dict[int, Group], index: int) -> int:
        return max(owner[index].members) if index in owner else index

    def _order(self, owner: dict[int, Group]) -> tuple[list[int], list[int]]:
        """Program order of the merged kernels, each known by its last member; moved only as far as data flow asks."""
        waits: dict[int, set[int]] = {}
        followers: dict[int, list[int]] = {}
        for index in range(len(self)):
            key = self._key(owner, index)
            waiting = waits.setdefault(key, set())
            for source in self.kernel(index).inputs:
                before = self._key(owner, source)
                if before != key and before not in waiting:
                    waiting.add(before)
                    followers.setdefault(before, []).append(key)
        count = {key: len(w) for key, w in waits.items()}
        ready = [key for key, n in count.items() if n == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            key = heapq.heappop(ready)
            order.append(key)
            for follower in followers.get(key, ()):
                count[follower] -= 1
                if count[follower] == 0:
                    heapq.heappush(ready, follower)
        done = set(order)
        return order, [] if len(order) == len(count) else [i for i in owner if self._key(owner, i) not in done]

    def _one(self, members: frozenset[int], group: Group | None, new: int, new_index: list[int]) -> Launch:
        parts = [self.launches[m] for m in sorted(members)]
        reads = {
            view: ActivationRead(read.bytes, frozenset(new_index[p] for p in read.producers))
            for part in parts
            for view, read in part.reads.items()
            if group is None or not read.producers or not read.producers <= members
        }
        inputs = tuple(sorted({new_index[i] for part in parts for i in part.kernel.inputs if i not in members}))
        if group is None:
            (part,) = parts
            return replace(part, kernel=replace(part.kernel, index=new, inputs=inputs), reads=reads)
        written = sum(
            part.written
            for part in parts
            if not self.consumers[part.kernel.index] or self.consumers[part.kernel.index] - members
        )
        anchor = self.launches[group.anchor]
        cubes = [p.kernel for p in parts if p.kernel.engine != "vector"]
        kernel = replace(
            anchor.kernel,
            index=new,
            op=group.op,
            engine=_engine([p.kernel.engine for p in parts]),
            flops=sum(p.kernel.flops for p in parts),
            flops_dtype=(cubes[0] if cubes else anchor.kernel).flops_dtype,
            weights=_union(w for p in parts for w in p.kernel.weights),
            other_bytes=float(sum(r.bytes for r in reads.values()) + written),
            inputs=inputs,
        )
        return Launch(kernel, _common(p.path for p in parts), reads, written, glue=True)


def moved(calls: Mapping[str, list[ModuleCall]], new_index: list[int]) -> dict[str, list[ModuleCall]]:
    """The module calls with the kernels' new indices."""

    def new(index: int | None) -> int | None:
        return None if index is None else new_index[index]

    return {
        fqn: [replace(c, input_kernel=new(c.input_kernel), output_kernel=new(c.output_kernel)) for c in found]
        for fqn, found in calls.items()
    }


def _engine(engines: list[Engine]) -> Engine:
    kinds = set(engines)
    return engines[0] if len(kinds) == 1 else "mix"


def _union(reads: Iterable[WeightRead]) -> tuple[WeightRead, ...]:
    found: dict[str, WeightRead] = {}
    for read in reads:
        before = found.get(read.weight)
        if before is not None:
            read = replace(
                read,
                share=min(1.0, before.share + read.share),
                share_low=min(1.0, before.share_low + read.share_low),
                share_high=min(1.0, before.share_high + read.share_high),
            )
        found[read.weight] = read
    return tuple(found.values())


def _common(paths: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    first, *others = paths
    length = len(first)
    for path in others:
        length = next((i for i, (a, b) in enumerate(zip(first, path, strict=False)) if a != b), min(length, len(path)))
        first = first[:length]
    return first[:length]
