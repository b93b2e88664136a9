"""Whether the diff does at full size what is planned there.

Source is written on the tiny model. A hybrid's tiny model may lack a sequence of layers that the full one has (a state
space layer behind another one), and with it the calls, or the links, that belong there; or roles fall to other weights
because the proportions are others. So where the full model has a pair of neighbouring layers, or an entry of the plan,
that the tiny one has not, or the other way round, or copies more of a weight in some layers than in others, the
rewritten classes are built at full size and run for a step, on `meta`, and every call is compared with the plan. Where
layers need several sizes, and the diff has not all of them, that is found without running.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from models.paths import Names
from models.problems import Problem, RefusedError
from pipeline.picked_layers import kinds_of_layers, without_numbers
from pipeline.target_resolver import Resolvable

if TYPE_CHECKING:
    from transforms.plan import Plan
    from transforms.source import SourceResult

_FIX = (
    "Give the tiny model the full one's sequence of layers (model.tiny.FIELD=VALUE, e.g. more layers), prefetch "
    "less (recipe.prefetch.only), or choose transform=wrap."
)


def full_size_problems(
    full: Any, tiny: Resolvable, plan: "Plan", tiny_plan: "Plan", source: "SourceResult"
) -> list[Problem]:
    """What the diff would do at full size that is not planned; empty if it does what is planned.

    Args:
        full: the model at full size, on `meta`.
        tiny: the model on which the diff was made.
        plan: of the full model.
        tiny_plan: of the tiny one, which the diff realises.
        source: the diff.

    Returns:
        At most one problem, the first deviation. Models that can't be run on `meta` step by step are not run: ours
        have tiny configurations of their own.
    """
    if not plan.prefetch:
        return []
    sizes = _sizes(plan)
    varied = any(len(several) > 1 for several in sizes.values())
    if (problem := _sizes_differ(sizes, _sizes(tiny_plan))) is not None:
        return [problem]
    if not hasattr(full, "stepper"):
        return []
    if not varied and not unseen_neighbours(full, tiny) and _entries(full, plan) == _entries(tiny, tiny_plan):
        return []
    reason = _deviation(full, plan, source)
    if reason is None:
        return []
    message = (
        f"the diff was written on a tiny model of {len(kinds_of_layers(_names(tiny)))} layers; at full size {reason}"
    )
    return [Problem("error", "not-at-full-size", message, _FIX, "model.tiny")]


def _sizes(plan: "Plan") -> dict[tuple[str, str], set[int]]:
    """(target, weight without numbers) -> the bytes that are copied of it."""
    found: dict[tuple[str, str], set[int]] = {}
    for p in plan.prefetch:
        found.setdefault((p.target, without_numbers(p.weight)), set()).add(p.max_size)
    return found


def _sizes_differ(full: Mapping[tuple[str, str], set[int]], tiny: Mapping[tuple[str, str], set[int]]) -> Problem | None:
    """The first weight of which the diff copies other sizes than planned, as the tiny layers do not need them all."""
    for (target, weight), sizes in full.items():
        have = tiny.get((target, weight), sizes)
        if have != sizes:
            planned, written = (" and ".join(map(str, sorted(several))) for several in (sizes, have))
            message = (
                f"{target} copies {planned} bytes of {weight}, depending on the layer, and the diff would copy "
                f"{written} bytes: the tiny model, on which it is written, has no such layers, or they look alike"
            )
            fix = (
                f"Give the target one max_size of {min(sizes)} bytes or less, or the tiny model such layers "
                "(model.tiny.FIELD=VALUE), leave the target out, or choose transform=wrap."
            )
            return Problem("error", "not-at-full-size", message, fix, f"recipe.prefetch.targets.{target}.weight")
    return None


def unseen_neighbours(full: Resolvable, tiny: Resolvable) -> bool:
    """Whether a layer of some kind is followed by one of another, or the same, kind in the full model only."""
    return bool(_neighbours(full) - _neighbours(tiny))


def _neighbours(loaded: Resolvable) -> set[tuple[object, object]]:
    kinds = kinds_of_layers(_names(loaded))
    return set(pairwise(kinds[layer] for layer in sorted(kinds)))


def _entries(loaded: Resolvable, plan: "Plan") -> set[tuple[object, ...]]:
    """What is prefetched after what, in layers of which kind, without numbers."""
    names = _names(loaded)
    kinds = kinds_of_layers(names)
    found: set[tuple[object, ...]] = set()
    for p in plan.prefetch:
        layers = [names.layer_of(fqn) for fqn in (p.weight, p.dependency)]
        where = [None if layer is None else kinds[layer] for layer in layers]
        found.add((p.target, p.port, without_numbers(p.weight), without_numbers(p.dependency), *where))
    return found


def _names(loaded: Resolvable) -> Names:
    return Names(loaded.module, loaded.root, loaded.layers)


def _deviation(full: Any, plan: "Plan", source: "SourceResult") -> str | None:
    from transforms.source import load_rewritten, switches

    full.past()  # it runs the model itself, when it is first asked for
    with tempfile.TemporaryDirectory() as directory:
        try:
            rewritten = load_rewritten(full, source, Path(directory))
            with _noted(rewritten) as copies:
                module = full.rebuild(rewritten, **switches(plan, True))
                full.decode_once(module)
        except RefusedError as refused:
            return f"it can't run: {'; '.join(p.message for p in refused.problems)}"
        except Exception as error:  # whatever the rewritten classes raise is what the diff would do to a user
            return f"the rewritten classes fail: {type(error).__name__}: {error}"
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return first_difference(
        [_copy(p.weight, p.max_size, p.offset) for p in plan.prefetch],
        [_copy(names.get(id(weight), "another tensor"), *size) for weight, *size in copies],
    )


def _copy(weight: str, max_size: int, offset: int) -> str:
    return f"{max_size} bytes{f' from {offset}' if offset else ''} of {weight}"


@contextmanager
def _noted(rewritten: ModuleType) -> Iterator[list[tuple[Any, int, int]]]:
    """Put weight, size and offset of every prefetch call of the file, in order, into the list that is yielded."""
    copies: list[tuple[Any, int, int]] = []
    names: Mapping[str, Any] = vars(rewritten)
    call = names["npu_prefetch"]

    def note(enabled: bool, weight: Any, dependency: Any, max_size: int, offset: int = 0) -> None:
        if enabled:
            copies.append((weight, max_size, offset))

    rewritten.npu_prefetch = note  # type: ignore[attr-defined]
    try:
        yield copies
    finally:
        rewritten.npu_prefetch = call  # type: ignore[attr-defined]


def first_difference(planned: list[str], called: list[str]) -> str | None:
    """The first call that is not the planned one, in words; None if all are."""
    counts = f"{len(called)} calls, {len(planned)} planned"
    for position, (want, have) in enumerate(zip(planned, called, strict=False), 1):
        if want != have:
            return f"call {position} copies {have} instead of {want} ({counts})"
    if len(called) < len(planned):
        return f"no call copies {planned[len(called)]} ({counts})"
    if len(called) > len(planned):
        return f"{called[len(planned)]} is copied without being planned ({counts})"
    return None
