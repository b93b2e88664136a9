"""Is this call part of a decode step? One rule, as source text for a rewrite and as a function for a wrap.

An explicit phase (`is_prefill` or `is_decode`: an argument, or an attribute of one such as `forward_metadata`) decides
if there is one. Otherwise it is the length of the query's sequence dimension: at most one token and the speculative
ones. The length of the cache is the wrong signal: chunked prefill has a cache too.
"""

import ast
from collections.abc import Mapping
from typing import Any

import torch

from transforms.recording import PHASE_NAMES, Argument, Recording
from transforms.source_file import default_of, is_rebound, parameters

QUERY_NAMES = ("input_ids", "inputs_embeds", "hidden_states")
Values = list[dict[str, Argument]]


class NoPhase(Exception):
    """Nothing in the function tells prefill from decode; the message says what was looked at."""


def phase_condition(recording: Recording, name: str, function: ast.FunctionDef) -> str:
    """An expression over the function's own parameters, true in decode, to be evaluated at its entry.

    Args:
        recording: a run with a prefill of several tokens per sequence and a decode step.
        name: qualified name of the function.
        function: its definition.

    Returns:
        For example `not is_prefill` or `hidden_states.shape[1] == 1`; `""` if the function runs in decode only.

    Raises:
        NoPhase: nothing tells.
    """
    prefill = recording.prefill.arguments.get(name, [])
    decode = recording.decode.arguments.get(name, [])
    names = [p.arg for p in parameters(function) if _is_entry_value(name, function, p.arg)]
    reasons: list[str] = []
    for parameter in names:
        flags = [{a[parameter].flag for a in step if parameter in a} for step in (prefill, decode)]
        if parameter in PHASE_NAMES and _tells(parameter, *flags):
            default = default_of(function, parameter)
            if default is None or _constant(default) is (not PHASE_NAMES[parameter]):
                return _test(parameter, parameter)
            reasons.append(f"`{parameter}` may be left out, which would mean decode")
    for parameter in names:
        for flag in PHASE_NAMES:
            steps = (prefill, decode)
            values = [{dict(a[parameter].flags).get(flag) for a in step if parameter in a} for step in steps]
            if _tells(flag, *values):
                test = _test(flag, f"{parameter}.{flag}")
                optional = default_of(function, parameter) is not None
                return f"{parameter} is not None and {test}" if optional else test
    for parameter in sorted(names, key=lambda p: not _is_floating(p, decode)):
        dimension = sequence_dimension(_shapes(parameter, prefill), _shapes(parameter, decode), recording.tokens)
        if dimension is not None:
            if not _may_be_none(function, parameter):
                return length_test(parameter, dimension, recording.tokens)
            reasons.append(f"`{parameter}` may be None")
    if decode and not prefill:
        return ""
    looked = "; ".join(reasons) or "it gets no is_prefill, and no argument with one length per sequence"
    raise NoPhase(f"{name} can't tell decode from prefill: {looked}")


def sequence_dimension(prefill: list[tuple[int, ...]], decode: list[tuple[int, ...]], tokens: int) -> int | None:
    """The dimension that counts tokens of one sequence. Never the first: flat tokens of all sequences look the same."""
    if not prefill or not decode:
        return None
    for dimension in range(1, min(map(len, prefill + decode))):
        if all(s[dimension] == tokens for s in decode) and all(s[dimension] > tokens for s in prefill):
            return dimension
    return None


def length_test(expression: str, dimension: int, tokens: int) -> str:
    return f"{expression}.shape[{dimension}] {'==' if tokens == 1 else '<='} {tokens}"


def is_decode(arguments: Mapping[str, Any], tokens: int) -> bool:
    """The same rule, applied to the arguments of the running model (traceable by `torch.compile`).

    Args:
        arguments: by name.
        tokens: most tokens per sequence in a decode step.
    """
    for name, value in arguments.items():
        if name in PHASE_NAMES and isinstance(value, bool):
            return value == PHASE_NAMES[name]
    for value in arguments.values():
        if value is None or isinstance(value, torch.Tensor):
            continue
        for name, decode_value in PHASE_NAMES.items():
            flag = getattr(value, name, None)
            if isinstance(flag, bool):
                return flag == decode_value
    # Masks and positions may be as long as the cache: the query's own names first.
    for value in (*(arguments.get(name) for name in QUERY_NAMES), *arguments.values()):
        if isinstance(value, torch.Tensor) and value.dim() > 1:
            return value.shape[1] <= tokens
    return False


def _is_entry_value(name: str, function: ast.FunctionDef, parameter: str) -> bool:
    # Hooks see what `forward` was called with; of other methods only the frame is known, after any assignment.
    return name.endswith(".forward") or not is_rebound(function, parameter)


def _tells(name: str, prefill: set[bool | None], decode: set[bool | None]) -> bool:
    return decode == {PHASE_NAMES[name]} and prefill in (set(), {not PHASE_NAMES[name]})


def _test(name: str, expression: str) -> str:
    return expression if PHASE_NAMES[name] else f"not {expression}"


def _shapes(parameter: str, step: Values) -> list[tuple[int, ...]]:
    shapes = [a[parameter].shape if parameter in a else None for a in step]
    return [s for s in shapes if s is not None] if None not in shapes else []


def _is_floating(parameter: str, step: Values) -> bool:
    return all(parameter in a and a[parameter].floating for a in step)


def _may_be_none(function: ast.FunctionDef, parameter: str) -> bool:
    default = default_of(function, parameter)
    if isinstance(default, ast.Constant) and default.value is None:
        return True
    annotation = next(p.annotation for p in parameters(function) if p.arg == parameter)
    return annotation is not None and any(word in ast.unparse(annotation) for word in ("None", "Optional"))


def _constant(default: ast.expr) -> Any:
    return default.value if isinstance(default, ast.Constant) else None
