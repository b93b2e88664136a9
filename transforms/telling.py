"""How instances that must issue a prefetch (or open a scope) are told from those that must not, in readable code.

In this order: an attribute that only some of them have, the type of a child on the way to the weight, a mark that the
parent of the planned role sets, the type of another child, and an attribute of the file's own that says what kind of
layer it is (`self.layer_type == "full_attention"`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from transforms.recording import Recording
from transforms.source_file import maybe_none, sometimes_assigned

MISSING = object()
_MOST_TYPES = 2  # in one isinstance
_OURS = ("prefetch_", "superkernel_", "enable_", "next_", "linked_")  # names that rewritten files get from us
_KINDS = (str, bool, type(None))


class NotPlaceable(Exception):
    """A plan entry that can't be written into the source; the message says why."""


@dataclass(frozen=True)
class Test:
    """A condition on an instance.

    Attributes:
        head: the path below the instance that it is about.
        text: the expression.
    """

    head: str
    text: str

    @property
    def depth(self) -> int:
        return self.head.count(".") + 1 if self.head else 0


@dataclass(frozen=True)
class Mark:
    """A bool attribute, False by default, that the parent's `__init__` sets on the child in the planned role."""

    parent: str
    child: str
    name: str
    only_if: str = ""


def attribute(path: str) -> str:
    """`mlps.0.down_proj` as Python writes it after a name: `.mlps[0].down_proj`."""
    out = ""
    for part in path.split(".") if path else []:
        out += f".{part}" if part.isidentifier() else f"[{part}]" if part.isdigit() else f'["{part}"]'
    return out


def join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def some(names: Iterable[str]) -> str:
    """At most three of the names, in words."""
    names = sorted(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def presence(recording: Recording, base: str, instance: str, path: str) -> list[Test]:
    """`hasattr(self, "mlp")` or `self.mlp is not None` for every part of the path that may be missing or None.

    Another role or configuration of the same file may lack the part, and arguments of a call are evaluated even if its
    switch is off.
    """
    found = []
    parts = path.split(".") if path else []
    for depth, name in enumerate(parts):
        absent, none = _uncertain(recording, recording.class_of(join(instance, *parts[:depth])))
        owner = base + attribute(".".join(parts[:depth]))
        if name in absent and name in none:
            test = f'getattr({owner}, "{name}", None) is not None'
        elif name in absent:
            test = f'hasattr({owner}, "{name}")'
        elif name in none:
            test = f"{owner}.{name} is not None"
        else:
            continue
        found.append(Test(".".join(parts[: depth + 1]), test))
    return found


def fails(recording: Recording, tests: Iterable[Test], other: str) -> bool:
    """Whether another instance fails one of the tests that `presence` gives for some instance."""
    for test in tests:
        value = value_at(recording, other, test.head)
        if value is None:
            return True
        if value is MISSING:  # without a hasattr or getattr, asking raises an error
            return "hasattr(" in test.text or "getattr(" in test.text
    return False


def conjunction(tests: Iterable[Test]) -> tuple[str, ...]:
    """The tests in an order in which each may rely on those before it; what another one implies is left out."""
    tests = sorted(dict.fromkeys(tests), key=lambda test: test.depth)
    typed = {test.head for test in tests if test.text.startswith("isinstance(")}  # None is of no such type
    return tuple(t.text for t in tests if t.head not in typed or t.text.startswith(("isinstance(", "hasattr(")))


def value_at(recording: Recording, instance: str, path: str) -> Any:
    """What an attribute path below an instance leads to; `MISSING` if it leads nowhere."""
    value: Any = recording.modules.get(instance, MISSING)
    for part in path.split(".") if path else []:
        if isinstance(value, nn.ModuleList) and part.isdigit():
            value = value[int(part)] if int(part) < len(value) else MISSING
        else:
            value = getattr(value, part, MISSING)
    return value


def tell_by_type(
    recording: Recording, base: str, path: str, planned: Iterable[str], others: Iterable[str]
) -> Test | None:
    """`isinstance(self.mlp, X)` for the shortest part of the path whose type tells the instances apart.

    What `base` names itself counts, too, unless that is `self`.
    """
    planned, others = list(planned), list(others)
    parts = path.split(".")
    for length in range(1 if base == "self" else 0, len(parts)):
        head = ".".join(parts[:length])
        elsewhere = [value_at(recording, other, head) for other in others]
        if any(value is MISSING for value in elsewhere):  # nor has it anything deeper
            return None
        types = dict.fromkeys(type(value_at(recording, instance, head)) for instance in planned)
        if len(types) > _MOST_TYPES or any(isinstance(value, tuple(types)) for value in elsewhere):
            continue
        names = [cls.__name__ for cls in types]
        if all(getattr(recording.python_module, cls.__name__, None) is cls for cls in types):
            kinds = names[0] if len(names) == 1 else f"({', '.join(names)})"
            return Test(head, f"isinstance({base}{attribute(head)}, {kinds})")
    return None


def tell_by_attribute(
    recording: Recording, base: str, path: str, planned: Iterable[str], others: Iterable[str]
) -> Test | None:
    """`self.layer_type == "full_attention"`: a text, a flag, or something that is None in one of the two groups.

    Numbers do not count: those of the tiny model are not those of the full one.
    """
    planned, others = list(planned), list(others)
    parts = path.split(".")
    heads = [".".join(parts[:length]) for length in range(len(parts))]
    for kind in _KINDS:
        for head in heads:
            objects = [[value_at(recording, instance, head) for instance in group] for group in (planned, others)]
            if not all(isinstance(value, nn.Module) for group in objects for value in group):
                break
            for name in _attributes(objects[0][0]):
                test = _differs(kind, *([getattr(o, name, MISSING) for o in group] for group in objects))
                if test:
                    return Test(head, test.format(f"{base}{attribute(head)}.{name}"))
    return None


def role(recording: Recording, name: str, planned: set[str], running: set[str]) -> Mark | None:
    """A mark for the one role (class of the parent, path below it) that all planned instances play, and no other."""
    if planned & set(layers_of(recording)):
        return None  # the place in the list of layers is no role: a model of another size has other places
    roles = {_place(recording, instance) for instance in planned}
    if len(roles) != 1:
        return None
    parent, child = roles.pop()
    parents = [fqn for fqn, m in recording.modules.items() if type(m).__name__ == parent]
    if {join(fqn, child) for fqn in parents} & running != planned:
        return None
    instance = min(planned).removesuffix(f".{child}")
    tests = presence(recording, "self", instance, child)
    others = [p for p in parents if join(p, child) not in planned and not fails(recording, tests, p)]
    if others:  # the child may be of another class there, which has no use for the mark
        by_type = tell_by_type(recording, "self", f"{child}.", [instance], others)
        tests += [by_type] if by_type else []
    return Mark(parent, child, name, " and ".join(conjunction(tests)))


def layers_of(recording: Recording) -> list[str]:
    """FQNs of the decoder layers."""
    layers = join(recording.root, recording.layers)
    return [join(layers, name) for name, _ in recording.modules[layers].named_children()]


def class_name(recording: Recording, fqn: str) -> str:
    """The name of an instance's class.

    Raises:
        NotPlaceable: another file defines it.
    """
    cls = recording.class_of(fqn)
    if not recording.in_file(cls):
        raise NotPlaceable(f"{cls.__name__}, the class of {fqn or 'the model'}, is not in {recording.source.path.name}")
    return cls.__name__


def is_list(recording: Recording, fqn: str) -> bool:
    return isinstance(recording.modules.get(fqn), nn.ModuleList | nn.ModuleDict)


def _uncertain(recording: Recording, cls: type) -> tuple[set[str], set[str]]:
    """Attributes that the class does not always set, and those that it may set to None."""
    absent: set[str] = set()
    none: set[str] = set()
    for base in cls.__mro__:
        init = recording.source.function(f"{base.__name__}.__init__") if recording.in_file(base) else None
        if init:
            absent |= sometimes_assigned(init)
            none |= maybe_none(init)
    return absent, none


def _attributes(module: nn.Module) -> list[str]:
    """Names in the order in which `__init__` sets them; plain values first."""
    names = [*vars(module), *module._modules, *module._parameters]
    return [n for n in names if not n.startswith(("_", *_OURS)) and n != "training"]


def _differs(kind: type, planned: list[Any], others: list[Any]) -> str | None:
    """A test of `{}` that holds for all of the first values and none of the others."""
    values = [*planned, *others]
    if any(value is MISSING for value in values):
        return None
    if kind is type(None):
        if any(isinstance(value, str | bool) for value in values):
            return None
        nones = [value is None for value in planned], [value is None for value in others]
        if all(nones[0]) and not any(nones[1]):
            return "{} is None"
        return "{} is not None" if not any(nones[0]) and all(nones[1]) else None
    if not all(type(value) is kind for value in values) or len(set(planned)) != 1 or planned[0] in others:
        return None
    if kind is bool:
        return "{}" if planned[0] else "not {}"
    return f'{{}} == "{planned[0]}"' if str(planned[0]).isidentifier() else None


def _place(recording: Recording, instance: str) -> tuple[str, str]:
    head, child = instance, ""
    while True:
        head, _, tail = head.rpartition(".")
        child = join(tail, child)
        if not is_list(recording, head):
            return class_name(recording, head), child
