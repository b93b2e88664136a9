"""Questions that a model asks its data, answered on `meta`, where there is none; and reasons why it can't run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from models.problems import Problem, RefusedError

_ALL = (torch.all, Tensor.all)
_PICKED = (Tensor.__getitem__, Tensor.__setitem__)
_NUMBERS = (Tensor.item, Tensor.__bool__, Tensor.__int__, Tensor.__float__)


class answers(TorchFunctionMode):
    """While it is open, `meta` tensors answer: `all` is true, other truths are false, numbers are 0.

    `nonzero` and masks find all places. Models ask such questions to warn about padding, to find packed sequences, and
    to skip experts without tokens. The answers are those of ordinary text: no padding, nothing packed; and every expert
    has tokens.
    """

    _first_only = False

    def __init__(self) -> None:
        super().__init__()
        self._true: set[int] = set()
        self._kept: list[Tensor] = []  # their ids are in `_true`, so they must live

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args else None
        if not isinstance(first, Tensor) or not first.is_meta:
            return func(*args, **(kwargs or {}))
        if func is Tensor.__contains__:
            return False
        if func in _NUMBERS:
            return _typed(func, first, id(first) in self._true)
        if func in (torch.nonzero, Tensor.nonzero):
            places = first[:1] if self._first_only and first.ndim == 1 else first
            return _everywhere(places, (kwargs or {}).get("as_tuple", False))
        if func in _PICKED and isinstance(args[1], Tensor) and args[1].dtype is torch.bool:
            args = (first, _everywhere(args[1], True), *args[2:])
        if func is torch.where and len(args) == 1 and not kwargs:
            return _everywhere(first, True)
        result = func(*args, **(kwargs or {}))
        if func in _ALL and isinstance(result, Tensor):
            self._true.add(id(result))
            self._kept.append(result)
        return result


@contextmanager
def first_experts() -> Iterator[None]:
    """While it is open, lists of places (of experts that have tokens, say) hold the first one only.

    On `meta` every place is read as 0, so a loop over hundreds of experts does the same over and over: who only wants
    to know what is done, and not how often, is spared that.
    """
    before, answers._first_only = answers._first_only, True
    try:
        yield
    finally:
        answers._first_only = before


def _typed(func: Any, tensor: Tensor, answer: bool) -> Any:
    if func is Tensor.__bool__ or (func is Tensor.item and tensor.dtype is torch.bool):
        return answer
    if func is Tensor.__float__ or (func is Tensor.item and tensor.is_floating_point()):
        return float(answer)
    return int(answer)


def _everywhere(tensor: Tensor, as_tuple: bool) -> Any:
    found = tensor.new_empty((tensor.numel(), tensor.ndim), dtype=torch.int64)
    return found.unbind(1) if as_tuple else found


@contextmanager
def reasons(module: nn.Module, fix: str = "") -> Iterator[None]:
    """Turn whatever a model raises when it runs on token ids into a problem that says so.

    Args:
        module: the model.
        fix: what may help.
    """
    try:
        yield
    except RefusedError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:300]
        where = "full size" if next(module.parameters()).is_meta else "tiny size"
        message = f"{type(module).__name__} can't run on token ids alone ({where}): {type(error).__name__}: {why}"
        fix = fix or "Use another model type, or change model.config."
        raise RefusedError([Problem("error", "cannot-run", message, fix, "model")]) from error
