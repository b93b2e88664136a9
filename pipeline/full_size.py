"""Whether the diff does at full size what is planned there.

Source is written on the tiny model. A hybrid's tiny model may lack a sequence of layers that the full one has (a state
space layer behind another one), and with it the calls, or the links, that belong there; or roles fall to other weights
because the proportions are others. So where the full model has a pair of neighbouring layers, or an entry of the plan,
that the tiny one has not, or the other way round, the rewritten classes are built at full size and run for a step, on
`meta`, and every call is compared with the plan.
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
        At most one problem, the first deviation. Models that can't be run on `meta` step by step are not asked: ours
        have tiny configurations of their own.
    """
    if not hasattr(full, "stepper") or not plan.prefetch:
        return []
    if not unseen_neighbours(full, tiny) and _entries(full, plan) == _entries(tiny, tiny_plan):
        return []
    reason = _deviation(full, plan, source)
    if reason is None:
        return []
    message = (
        f"the diff was written on a tiny model of {len(kinds_of_layers(_names(tiny)))} layers; at full size {reason}"
    )
    return [Problem("error", "not-at-full-size", message, _FIX, "model.tiny")]


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
            with _noted(rewritten) as weights:
                module = full.rebuild(rewritten, **switches(plan, True))
                full.decode_once(module)
        except RefusedError as refused:
            return f"it can't run: {'; '.join(p.message for p in refused.problems)}"
        except Exception as error:  # whatever the rewritten classes raise is what the diff would do to a user
            return f"the rewritten classes fail: {type(error).__name__}: {error}"
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return first_difference([p.weight for p in plan.prefetch], [names.get(id(w), "another tensor") for w in weights])


@contextmanager
def _noted(rewritten: ModuleType) -> Iterator[list[Any]]:
    """Put the weight of every prefetch call of the file, in order, into the list that is yielded."""
    weights: list[Any] = []
    names: Mapping[str, Any] = vars(rewritten)
    call = names["npu_prefetch"]

    def note(enabled: bool, weight: Any, *others: Any) -> None:
        if enabled:
            weights.append(weight)

    rewritten.npu_prefetch = note  # type: ignore[attr-defined]
    try:
        yield weights
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
