"""Read a mapping from YAML or the command line into a dataclass's fields: all problems, no traceback."""

import difflib
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from models.problems import Problem


def read_record(
    cls: type, data: Mapping[str, Any], key: str, file: str | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """The fields of `cls` found in `data`, and what is wrong with `data`.

    Fields whose metadata has `runtime=True` are not the user's: the loader sets them.

    Args:
        cls: a dataclass with int, float, bool, str, Literal, optional or mapping fields.
        data: plain containers, as from a YAML file.
        key: dotted configuration key of `data`, e.g. `model.config`.
        file: the file that holds it.

    Returns:
        Values by field name (only the good ones) and the problems: unknown, missing and ill-typed keys.
    """
    hints = get_type_hints(cls)
    known = {f.name: f for f in fields(cls) if not f.metadata.get("runtime")}
    values: dict[str, Any] = {}
    problems = [unknown_key(str(name), known, key, file) for name in data if name not in known]
    for name, field in known.items():
        if name in data:
            value, expected = _convert(data[name], hints[name])
            if expected is None:
                values[name] = value
            else:
                message = f"{data[name]!r} is not {expected}"
                problems.append(Problem("error", "bad-type", message, f"Give {expected}.", f"{key}.{name}", file))
        elif field.default is MISSING and field.default_factory is MISSING:
            kind = _describe(hints[name])
            problems.append(
                Problem("error", "missing-key", "the key is missing", f"Give {kind}.", f"{key}.{name}", file)
            )
    return values, problems


def unknown_key(name: str, known: Iterable[str], key: str, file: str | None = None) -> Problem:
    """The problem of a key that nobody reads, with the nearest known ones."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    fix = f"Did you mean {' or '.join(near)}?" if near else f"Known keys: {', '.join(known)}."
    return Problem("error", "unknown-key", f"unknown key {name!r}", fix, f"{key}.{name}", file)


def _convert(value: Any, hint: Any) -> tuple[Any, str | None]:
    """The value as `hint` wants it, and None; or the value and what was expected instead."""
    origin = get_origin(hint)
    if origin is Literal:
        same = any(value == option and type(value) is type(option) for option in get_args(hint))  # True is not 1
        return value, None if same else _describe(hint)
    if origin in (Union, types.UnionType):
        results = [_convert(value, option) for option in get_args(hint)]
        return next((r for r in results if r[1] is None), (value, _describe(hint)))
    if hint is type(None):
        return value, None if value is None else "null"
    if hint is float:
        finite = type(value) in (int, float) and math.isfinite(value)
        return (float(value), None) if finite else (value, _describe(hint))
    if hint in (int, bool, str):  # `type`, not isinstance: True is no size
        return value, None if type(value) is hint else _describe(hint)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return value, None if isinstance(value, Mapping) else "a mapping"
    return value, None


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in get_args(hint))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    return names.get(hint, "a mapping")
