"""How an instance that issues a prefetch spells the weight, and how instances that must not issue it are told apart.

A weight below the instance is an attribute path. Any other weight is reached by a *link*: an attribute that the common
parent sets to a sibling module (never to a parameter, which loading may replace), `None` by default and always asked,
because draft models and other roles build the same class and bind nothing. A link into the next layer leads to the very
module that owns the weight, or to a part of that layer with several such weights (its attention) if nothing leads on
from there: links from layer to layer would make one chain through the whole model, which compilers and `copy.deepcopy`
follow recursively.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from transforms.blocks import is_called_later
from transforms.recording import Recording, Site
from transforms.telling import (
    MISSING,
    Mark,
    NotPlaceable,
    Test,
    attribute,
    class_name,
    conjunction,
    fails,
    is_list,
    join,
    layers_of,
    presence,
    role,
    some,
    tell_by_attribute,
    tell_by_type,
    value_at,
)


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


def reach(recording: Recording, owner: str, weight: str, shared: frozenset[tuple[str, str]] = frozenset()) -> Reach:
    """How the instance at `owner` spells the parameter `weight`.

    Args:
        recording: the recorded run.
        owner: FQN of the instance.
        weight: FQN of the parameter.
        shared: from `shared_links`.

    Raises:
        NotPlaceable: only a same-layer relative or the next layer can be linked.
    """
    if is_below(weight, owner):
        return Reach(weight[len(owner) + 1 :] if owner else weight)
    layers = join(recording.root, recording.layers)
    if is_below(owner, layers) and is_below(weight, layers):
        here, there = _in_layer(owner, layers), _in_layer(weight, layers)
        if here[0] != there[0]:
            if int(there[0]) != int(here[0]) + 1:
                raise NotPlaceable(f"{weight} is not in the same or the next layer")
            depth = _part_depth(recording, layers, there)
            if (".".join(here[1:]), ".".join(there[1:depth])) not in shared:
                depth = len(there) - 1
            parent = class_name(recording, recording.root)
            name = "_".join(["next", *there[1:depth]]) if there[1:depth] else "next_layer"
            link = Link(parent, name, ".".join(here[1:]), ".".join(there[1:depth]), to_next=True)
            return Reach(".".join(there[depth:]), complete(recording, link))
    return _relative(recording, owner, weight, layers)


def shared_links(recording: Recording, needs: Iterable[tuple[str, str, object]]) -> frozenset[tuple[str, str]]:
    """Which parts of the next layer one link leads to, for all weights there.

    Such a part has several of the weights, or is planned for only some of the layers, or not in the same way (then it
    tells what the module that owns the weight can't), and no link starts inside of it.

    Args:
        recording: the recorded run.
        needs: (FQN of an instance, FQN of a weight that it spells, how it is prefetched).

    Returns:
        (path of the instance below its layer, path of the part below the next layer).
    """
    layers = join(recording.root, recording.layers)
    holders: set[str] = set()
    weights: dict[tuple[str, str], dict[str, list[tuple[str, object]]]] = {}
    for owner, weight, manner in needs:
        if is_below(weight, owner) or not (is_below(owner, layers) and is_below(weight, layers)):
            continue
        here, there = _in_layer(owner, layers), _in_layer(weight, layers)
        holders.add(".".join(here[1:]))
        if here[0] != there[0]:
            depth = _part_depth(recording, layers, there)
            key = ".".join(here[1:]), ".".join(there[1:depth])
            weights.setdefault(key, {}).setdefault(".".join(there[depth:]), []).append((here[0], manner))
    found = set()
    for (holder, part), tails in weights.items():
        manners = [{manner for _, manner in planned} for planned in tails.values()]
        pairs = sum(_exist(recording, join(a, holder), join(b, part)) for a, b in pairwise(layers_of(recording)))
        partial = any(len(m) > 1 for m in manners) or any(len(planned) < pairs for planned in tails.values())
        leaves = any("." not in tail for tail in tails)
        if (len(tails) > 1 or partial) and part and not leaves and not any(is_below(f"{h}.", part) for h in holders):
            found.add((holder, part))
    return frozenset(found)


def _in_layer(fqn: str, layers: str) -> list[str]:
    """`["3", "self_attn", "q_proj"]`."""
    return fqn[len(layers) + 1 :].split(".")


def _part_depth(recording: Recording, layers: str, there: list[str]) -> int:
    """How many names lead to the outermost module inside the layer that a weight is in, the layer's included."""
    depth = 2
    while depth < len(there) and is_list(recording, join(layers, *there[:depth])):
        depth += 1
    return min(depth, len(there) - 1)


def is_below(path: str, parent: str) -> bool:
    return not parent or path.startswith(f"{parent}.")


def condition(
    recording: Recording, reached: Reach, planned: set[str], running: set[str], site: Site | None
) -> tuple[tuple[str, ...], Mark | None]:
    """What must hold on an instance so that exactly the planned ones issue the prefetch.

    Args:
        recording: the recorded run.
        reached: how they spell the weight.
        planned: FQNs of the instances that are in the plan.
        running: FQNs of all instances that run the statement.
        site: the call that the statement belongs to, if it belongs to one.

    Returns:
        Conditions, to be nested in this order, and a mark if one is needed.

    Raises:
        NotPlaceable: they can't be told apart in readable code.
    """
    link, base, path = reached.link, reached.base, reached.path
    pairs = _pairs(recording, link) if link else {instance: instance for instance in running}
    end = pairs.__getitem__
    if not planned <= pairs.keys():
        raise NotPlaceable(f"the link can't be set in {some(planned - pairs.keys())}")
    tests = presence(recording, base, end(min(planned)), path)
    tests = [t for t in tests if link or not is_called_later(recording, site, min(planned), t.head)]
    missing = {m for m in (running & pairs.keys()) - planned if not fails(recording, tests, end(m))}
    bound = [Test("", f"{base} is not None")] if link else []
    if not missing:
        return conjunction([*bound, *tests]), None
    ends = [end(m) for m in sorted(planned)], [end(m) for m in sorted(missing)]
    told = tell_by_type(recording, base, path, *ends)
    if told is None and link is None:
        weight = next(iter([part for part in path.split(".") if part.isidentifier()][-2:]))
        mark = role(recording, f"prefetch_{weight}", planned, running)
        if mark is not None:
            return (f"self.{mark.name}",), mark
    others = [name for name, _ in recording.modules[min(planned)].named_children()] if link is None else []
    told = told or next(filter(None, (tell_by_type(recording, base, f"{name}.", *ends) for name in others)), None)
    told = told or tell_by_attribute(recording, base, path, *ends)
    if told is None:
        raise NotPlaceable(f"{some(missing)} run the same statement, but are not in the plan with the same size")
    return conjunction([*bound, *tests, told]), None


def _relative(recording: Recording, owner: str, weight: str, layers: str) -> Reach:
    here, there = owner.split("."), weight.split(".")
    common = 0
    while here[common : common + 1] == there[common : common + 1] and common < len(here):
        common += 1
    while is_list(recording, ".".join(here[:common])):
        common -= 1
    parent = ".".join(here[:common])
    if is_below(layers, parent) and is_below(owner, layers):
        raise NotPlaceable(f"{weight} is outside the layer that {owner} is in")
    depth = common + 1
    while is_list(recording, ".".join(there[:depth])):
        depth += 1
    target, path = ".".join(there[common:depth]), ".".join(there[depth:])
    if not path:
        raise NotPlaceable(f"{weight} is a parameter of {parent} itself, and links lead to modules")
    name = "linked_" + target.replace(".", "_")
    link = Link(class_name(recording, parent), name, ".".join(here[common:]), target)
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
    layers = [(layer, layer) for layer in layers_of(recording)]
    link = Link("", "", holder, "")
    return " and ".join(_existence(recording, [(layer, "layer", holder) for layer, _ in layers], layers, link))


def _existence(
    recording: Recording, side: list[tuple[str, str, str]], ends: list[tuple[str, str]], link: Link
) -> tuple[str, ...]:
    """Tests that hold where one end of the link exists.

    Args:
        recording: the recorded run.
        side: (where the path starts, its name in the code, path) for each pair of `ends`.
        ends: the pairs that the link may connect.
        link: tells where both ends exist.
    """
    _, variable, path = side[0]
    if not path:
        return ()
    has = [k for k, (a, b) in enumerate(ends) if _exist(recording, join(a, link.holder), join(b, link.target))]
    lacking = [k for k, (base, _, _) in enumerate(side) if join(base, path) not in recording.modules]
    bases = [base for base, _, _ in side]
    tests = presence(recording, variable, bases[has[0]], path)
    others = [bases[k] for k in lacking if not fails(recording, tests, bases[k])]
    if others:
        planned = [bases[k] for k in has]
        told = tell_by_type(recording, variable, f"{path}.", planned, others)
        told = told or tell_by_attribute(recording, variable, f"{path}.", planned, others)
        first = path.partition(".")[0]
        if told is None and all(value_at(recording, other, first) is MISSING for other in others):
            told = Test(first, f'hasattr({variable}, "{first}")')
        if told is None:
            raise NotPlaceable(f"{some(others)} lacks {path}, and no type of a child tells")
        tests.append(told)
    return conjunction(tests)


def _exist(recording: Recording, *names: str) -> bool:
    return all(name in recording.modules for name in names)


def _pairs(recording: Recording, link: Link) -> dict[str, str]:
    """Instance that holds the link -> module it leads to."""
    pairs = ((join(a, link.holder), join(b, link.target)) for a, b in _ends(recording, link))
    return {holder: target for holder, target in pairs if _exist(recording, holder, target)}


def _ends(recording: Recording, link: Link) -> list[tuple[str, str]]:
    """Where the paths of holder and target start: twice the same parent, or a layer and the next one."""
    if link.to_next:
        layers = layers_of(recording)
        return list(pairwise(layers))
    parents = [name for name, module in recording.modules.items() if type(module).__name__ == link.parent]
    return [(parent, parent) for parent in parents]
