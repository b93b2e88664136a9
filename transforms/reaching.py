"""How an instance that issues a prefetch spells the weight, and how instances that must not issue it are told apart.

A weight below the instance is an attribute path. Any other weight is reached by a *link*: an attribute that the common
parent sets to a sibling module (never to a parameter, which loading may replace), `None` by default and always asked,
because draft models and other roles build the same class and bind nothing. A link into the next layer leads to the very
module that owns the weight: links from layer to layer would make one chain through the whole model, which compilers and
`copy.deepcopy` follow recursively.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import nn

from transforms.recording import Recording
from transforms.source_file import sometimes_assigned


class NotPlaceable(Exception):
    """A plan entry that can't be written into the source; the message says why."""


@dataclass(frozen=True)
class Link:
    """An attribute of the instances at `holder` that leads to a module outside them.

    Attributes:
        parent: class whose `__init__` sets it.
        name: the attribute.
        holder: path of the instance, below the parent, or below a layer for a link to the next one (`""`: the layer).
        target: path of the module it leads to, below the parent, or below the next layer (`""`: that layer).
        to_next: it leads from a layer into the next one.
        only_if: condition on `self`, or on `layer` and `next_layer`, that holds where both paths exist, `""` if they
            always do.
    """

    parent: str
    name: str
    holder: str
    target: str
    to_next: bool = False
    only_if: str = ""


@dataclass(frozen=True)
class Mark:
    """A bool attribute, False by default, that the parent's `__init__` sets on the child in the planned role."""

    parent: str
    child: str
    name: str
    only_if: str = ""


@dataclass(frozen=True)
class Reach:
    """How one instance spells one weight: `self` or `self.<link>`, then `path`."""

    path: str
    link: Link | None = None

    @property
    def base(self) -> str:
        return f"self.{self.link.name}" if self.link else "self"

    @property
    def text(self) -> str:
        return self.base + attribute(self.path)


def attribute(path: str) -> str:
    """`mlps.0.down_proj` as Python writes it after a name: `.mlps[0].down_proj`."""
    out = ""
    for part in path.split(".") if path else []:
        out += f".{part}" if part.isidentifier() else f"[{part}]" if part.isdigit() else f'["{part}"]'
    return out


def reach(recording: Recording, owner: str, weight: str) -> Reach:
    """How the instance at `owner` spells the parameter `weight`.

    Raises:
        NotPlaceable: only a same-layer relative or the next layer can be linked.
    """
    if is_below(weight, owner):
        return Reach(weight[len(owner) + 1 :] if owner else weight)
    layers = f"{recording.root}.{recording.layers}" if recording.root else recording.layers
    if is_below(owner, layers) and is_below(weight, layers):
        here, there = owner[len(layers) + 1 :].split("."), weight[len(layers) + 1 :].split(".")
        if here[0] != there[0]:
            if int(there[0]) != int(here[0]) + 1:
                raise NotPlaceable(f"{weight} is not in the same or the next layer")
            parent = _class_name(recording, recording.root)
            name = "_".join(["next", *there[1:-1]]) if there[1:-1] else "next_layer"
            link = Link(parent, name, ".".join(here[1:]), ".".join(there[1:-1]), to_next=True)
            return Reach(there[-1], complete(recording, link))
    return _relative(recording, owner, weight, layers)


def is_below(path: str, parent: str) -> bool:
    return not parent or path.startswith(f"{parent}.")


def condition(
    recording: Recording, reached: Reach, planned: set[str], running: set[str]
) -> tuple[tuple[str, ...], Mark | None]:
    """What must hold on an instance so that exactly the planned ones issue the prefetch.

    Args:
        recording: the recorded run.
        reached: how they spell the weight.
        planned: FQNs of the instances that are in the plan.
        running: FQNs of all instances that run the statement.

    Returns:
        Conditions, to be nested in this order, and a mark if one is needed.

    Raises:
        NotPlaceable: they can't be told apart in readable code.
    """
    link = reached.link
    pairs = _pairs(recording, link) if link else {instance: instance for instance in running}
    end = pairs.__getitem__
    if not planned <= pairs.keys():
        raise NotPlaceable(f"the link can't be set in {_some(planned - pairs.keys())}")
    missing = (running & pairs.keys()) - planned
    conditions: tuple[str, ...] = (f"{reached.base} is not None",) if link else ()
    conditions += presence(recording, reached.base, end(min(planned)), reached.path)
    if not missing:
        return conditions, None
    by_type = tell_by_type(recording, reached.base, reached.path, map(end, planned), map(end, missing))
    if by_type:
        return (*conditions, by_type), None
    if link is None:
        weight = next(iter([part for part in reached.path.split(".") if part.isidentifier()][-2:]))
        mark = role(recording, f"prefetch_{weight}", planned, running)
        if mark is not None:
            return (f"self.{mark.name}",), mark
    raise NotPlaceable(f"{_some(missing)} run the same statement, but are not in the plan with the same size")


def presence(recording: Recording, base: str, instance: str, path: str) -> tuple[str, ...]:
    """`hasattr(self, "mlp")` for every part of the path that its class does not always set.

    Another role or configuration of the same file may lack the part, and arguments of a call are evaluated even if its
    switch is off.
    """
    conditions = []
    parts = path.split(".") if path else []
    for depth, name in enumerate(parts):
        cls = recording.class_of(join(instance, *parts[:depth]))
        if name in _sometimes(recording, cls):
            conditions.append(f'hasattr({base}{attribute(".".join(parts[:depth]))}, "{name}")')
    return tuple(conditions)


def _sometimes(recording: Recording, cls: type) -> set[str]:
    names: set[str] = set()
    for base in cls.__mro__:
        init = recording.source.function(f"{base.__name__}.__init__") if recording.in_file(base) else None
        names |= sometimes_assigned(init) if init else set()
    return names


def _relative(recording: Recording, owner: str, weight: str, layers: str) -> Reach:
    here, there = owner.split("."), weight.split(".")
    common = 0
    while here[common : common + 1] == there[common : common + 1] and common < len(here):
        common += 1
    while _is_list(recording, ".".join(here[:common])):
        common -= 1
    parent = ".".join(here[:common])
    if is_below(layers, parent) and is_below(owner, layers):
        raise NotPlaceable(f"{weight} is outside the layer that {owner} is in")
    depth = common + 1
    while _is_list(recording, ".".join(there[:depth])):
        depth += 1
    target, path = ".".join(there[common:depth]), ".".join(there[depth:])
    if not path:
        raise NotPlaceable(f"{weight} is a parameter of {parent} itself, and links lead to modules")
    name = "linked_" + target.replace(".", "_")
    link = Link(_class_name(recording, parent), name, ".".join(here[common:]), target)
    return Reach(path, complete(recording, link))


def complete(recording: Recording, link: Link) -> Link:
    """Add the condition under which the parent (or two neighbouring layers) has both ends of the link."""
    start, end = ("layer", "next_layer") if link.to_next else ("self", "self")
    ends = _ends(recording, link)
    starts = [(a, start, link.holder) for a, _ in ends], [(b, end, link.target) for _, b in ends]
    tests = [test for side in starts for test in _existence(recording, side, ends, link)]
    return replace(link, only_if=" and ".join(dict.fromkeys(tests)))


def where_present(recording: Recording, holder: str) -> str:
    """The condition on `layer` under which a layer has the module at `holder`, `""` if all have it."""
    layers = [(layer, layer) for layer in _layers(recording)]
    link = Link("", "", holder, "")
    return " and ".join(_existence(recording, [(layer, "layer", holder) for layer, _ in layers], layers, link))


def _existence(
    recording: Recording, side: list[tuple[str, str, str]], ends: list[tuple[str, str]], link: Link
) -> list[str]:
    """Tests that hold where one end of the link exists.

    Args:
        recording: the recorded run.
        side: (where the path starts, its name in the code, path) for each pair of `ends`.
        ends: the pairs that the link may connect.
        link: tells where both ends exist.
    """
    _, variable, path = side[0]
    if not path:
        return []
    has = [k for k, (a, b) in enumerate(ends) if _exist(recording, join(a, link.holder), join(b, link.target))]
    lacks = [k for k, (base, _, _) in enumerate(side) if join(base, path) not in recording.modules]
    tests = list(presence(recording, variable, side[has[0]][0], path))
    if lacks and not tests:
        bases = [base for base, _, _ in side]
        test = tell_by_type(recording, variable, f"{path}.", [bases[k] for k in has], [bases[k] for k in lacks])
        if test is None:
            raise NotPlaceable(f"{_some({bases[k] for k in lacks})} lacks {path}, and no type of a child tells")
        tests = [test]
    return tests


def _exist(recording: Recording, *names: str) -> bool:
    return all(name in recording.modules for name in names)


def _pairs(recording: Recording, link: Link) -> dict[str, str]:
    """Instance that holds the link -> module it leads to."""
    pairs = ((join(a, link.holder), join(b, link.target)) for a, b in _ends(recording, link))
    return {holder: target for holder, target in pairs if _exist(recording, holder, target)}


def _ends(recording: Recording, link: Link) -> list[tuple[str, str]]:
    """Where the paths of holder and target start: twice the same parent, or a layer and the next one."""
    if link.to_next:
        layers = _layers(recording)
        return list(pairwise(layers))
    parents = [name for name, module in recording.modules.items() if type(module).__name__ == link.parent]
    return [(parent, parent) for parent in parents]


def _layers(recording: Recording) -> list[str]:
    layers = join(recording.root, recording.layers)
    return [join(layers, name) for name, _ in recording.modules[layers].named_children()]


def tell_by_type(
    recording: Recording, base: str, path: str, planned: Iterable[str], others: Iterable[str]
) -> str | None:
    """`isinstance(self.mlp, X)` for the shortest part of the path whose type tells the instances apart."""
    planned, others = list(planned), list(others)
    parts = path.split(".")
    for length in range(1, len(parts)):
        head = ".".join(parts[:length])
        types = {type(recording.modules.get(join(instance, head))) for instance in planned}
        if len(types) != 1 or types & {type(recording.modules.get(join(o, head))) for o in others}:
            continue
        name = types.pop().__name__
        if hasattr(recording.python_module, name):
            return f"isinstance({base}{attribute(head)}, {name})"
    return None


def role(recording: Recording, name: str, planned: set[str], running: set[str]) -> Mark | None:
    """A mark for the one role (class of the parent, path below it) that all planned instances play, and no other."""
    if planned & set(
        _layers(recording)
    ):  # the place in the list of layers is no role: a model of another size has other places
        return None
    roles = {_place(recording, instance) for instance in planned}
    if len(roles) != 1:
        return None
    parent, child = roles.pop()
    playing = {join(fqn, child) for fqn, m in recording.modules.items() if type(m).__name__ == parent}
    if playing & running != planned:
        return None
    instance = min(planned).removesuffix(f".{child}")
    return Mark(parent, child, name, " and ".join(presence(recording, "self", instance, child)))


def _place(recording: Recording, instance: str) -> tuple[str, str]:
    head, child = instance, ""
    while True:
        head, _, tail = head.rpartition(".")
        child = join(tail, child)
        if not _is_list(recording, head):
            return _class_name(recording, head), child


def _is_list(recording: Recording, fqn: str) -> bool:
    return isinstance(recording.modules.get(fqn), nn.ModuleList | nn.ModuleDict)


def _class_name(recording: Recording, fqn: str) -> str:
    cls = recording.class_of(fqn)
    if not recording.in_file(cls):
        raise NotPlaceable(f"{cls.__name__}, the class of {fqn or 'the model'}, is not in {recording.source.path.name}")
    return cls.__name__


def join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _some(names: Iterable[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
