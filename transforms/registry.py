"""The registered transforms: an explicit list. Each file has the transform, its doc and its examples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from models.problems import Problem, RefusedError, did_you_mean
from transforms import prefetch_source, prefetch_wrap, source, superkernel_source, superkernel_wrap, wrap
from transforms.example import Example
from transforms.plan import Plan
from transforms.realisation import Realisation


@dataclass(frozen=True)
class Transform:
    """A way to realise a plan.

    Attributes:
        name: `<lever>.<transform>`, where the second part is the value of the configuration key `transform`.
        lever: which part of the plan it realises.
        needs_source: whether it reads and rewrites the modeling file.
        doc: one sentence.
        realise: `(loaded, plan, recording=None) -> Realisation`; raises RefusedError if the plan can't be placed whole.
        examples: before and after, executed by a test.
    """

    name: str
    lever: Literal["prefetch", "superkernel"]
    needs_source: bool
    doc: str
    realise: Callable[..., Realisation]
    examples: tuple[Example, ...]


TRANSFORMS = {
    transform.name: transform
    for transform in (
        Transform(
            "prefetch.source",
            "prefetch",
            True,
            "Write switchable prefetch calls into the modeling file, as a reviewable diff.",
            prefetch_source.realise,
            prefetch_source.EXAMPLES,
        ),
        Transform(
            "prefetch.wrap",
            "prefetch",
            False,
            "Hook the modules of one model instance; needs no source and can be undone.",
            prefetch_wrap.realise,
            prefetch_wrap.EXAMPLES,
        ),
        Transform(
            "superkernel.source",
            "superkernel",
            True,
            "Write switchable SuperKernel scopes into the modeling file, as a reviewable diff.",
            superkernel_source.realise,
            superkernel_source.EXAMPLES,
        ),
        Transform(
            "superkernel.wrap",
            "superkernel",
            False,
            "Open and close SuperKernel scopes by hooks on one model instance; needs no source and can be undone.",
            superkernel_wrap.realise,
            superkernel_wrap.EXAMPLES,
        ),
    )
}
_WHOLE: dict[str, Callable[..., Realisation]] = {"source": source.realise, "wrap": wrap.realise}


def transform(name: str) -> Transform:
    """The transform of that name.

    Raises:
        RefusedError: there is none; names the nearest.
    """
    if name not in TRANSFORMS:
        fix = did_you_mean(name, TRANSFORMS)
        raise RefusedError([Problem("error", "unknown-transform", f"no transform {name!r}", fix, "transform")])
    return TRANSFORMS[name]


def realise(name: str, loaded: Any, plan: Plan, recording: Any = None) -> Realisation:
    """Realise a plan: `source` or `wrap` for all of it, or the name of a transform for its lever alone.

    Raises:
        RefusedError: there is no such transform, or the plan can't be placed whole.
    """
    return (_WHOLE.get(name) or transform(name).realise)(loaded, plan, recording)
