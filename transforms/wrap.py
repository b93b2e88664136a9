"""The wrap realisation of a whole plan: prefetches and SuperKernel scopes by hooks on one model instance."""

from pathlib import Path
from typing import Any

from torch import nn

from models.prefetch import use_side_stream
from models.problems import raise_errors
from transforms.plan import Plan
from transforms.prefetch_wrap import add_prefetches, prefetch_problems, repeated_problems
from transforms.realisation import Realisation
from transforms.superkernel_wrap import add_scopes, scope_problems
from transforms.wrapping import Wrapped, start


def wrap(loaded: Any, plan: Plan) -> Wrapped:
    """Let the model realise the plan in decode.

    Copies of the model (`copy.deepcopy`) prefetch their own weights.

    Args:
        loaded: a `LoadedModel`, or a plain module that is called with the phase or with the query tokens.
        plan: what to prefetch, and which scopes to open.

    Raises:
        RefusedError: the model has no such parameters or modules, or the mode no scopes; nothing has been wrapped.
    """
    module = loaded if isinstance(loaded, nn.Module) else loaded.module
    raise_errors([*prefetch_problems(module, plan), *scope_problems(dict(module.named_modules()), plan)])
    if plan.prefetch:
        use_side_stream(plan.exe_mode)
    wrapped = start(loaded)
    add_prefetches(wrapped, plan)
    add_scopes(wrapped, plan)
    return wrapped


def realise(loaded: Any, plan: Plan, recording: Any = None) -> Realisation:
    """Wrap for the time of a `with` block, or lend the model as it is.

    Args:
        loaded: the model.
        plan: what to prefetch, and which scopes to open.
        recording: not needed; if there is one, dependencies that are called several times in a step are refused.

    Raises:
        RefusedError: likewise.
    """
    if recording is not None:
        raise_errors(repeated_problems(recording, plan))

    def build(enabled: bool, directory: Path) -> Wrapped | nn.Module:
        return wrap(loaded, plan) if enabled else loaded.module

    return Realisation(build)
