"""Reads the single values of a recipe, each with the problem that it may have."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from models.paths import Pattern, PatternError, parse_pattern
from models.problems import did_you_mean
from models.role_names import unknown_role
from pipeline.reporter import Reporter
from pipeline.sizes_text import SizeError, parse_size
from transforms.plan import Port


def parse_coefficient(value: Any) -> Decimal:
    """Exact decimal of a coefficient; floats as YAML wrote them (0.7 is 7/10).

    Raises:
        ValueError: not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(f"{value!r} is not a number")
    try:
        number = Decimal(repr(value) if isinstance(value, float) else str(value).strip())
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a number") from None
    if not number.is_finite():
        raise ValueError(f"{value!r} is not a finite number")
    return number


def check_keys(report: Reporter, key: str, data: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Report every key that is not known."""
    for name in data:
        if name not in known:
            report.error(
                "unknown-key", f"{key}.{name}", f"unknown key `{name}` in `{key}`", did_you_mean(str(name), known)
            )


def read_text(report: Reporter, data: Mapping[str, Any], name: str, required: bool = False) -> str | None:
    """A text of the recipe's top level."""
    value = data.get(name)
    if value is None and required:
        report.error("missing-key", f"recipe.{name}", f"the recipe has no `{name}`", f"Add `{name}:` to the recipe.")
    if value is None or isinstance(value, str):
        return value
    report.error("bad-type", f"recipe.{name}", f"`{name}` is a text, not {value!r}")
    return None


def read_switch(report: Reporter, key: str, value: Any) -> bool:
    """true or false; false if it is neither."""
    if isinstance(value, bool):
        return value
    report.error("bad-type", key, f"`{key.rpartition('.')[2]}` is true or false, not {value!r}")
    return False


def read_path(report: Reporter, key: str, value: Any) -> Pattern | None:
    """A structural path; None with a problem reported."""
    name = key.rpartition(".")[2]
    if value is None:
        report.error(
            "missing-key",
            key,
            f"`{key.rpartition('.')[0]}` has no `{name}`",
            f"Add `{name}:` with a path like layers.{{i}}.mlp.router.classifier.",
        )
        return None
    if not isinstance(value, str):
        report.error("bad-type", key, f"`{name}` is a path, not {value!r}")
        return None
    return _pattern(report, key, value)


def _pattern(report: Reporter, key: str, text: str) -> Pattern | None:
    try:
        pattern = parse_pattern(text)
    except PatternError as error:
        report.error("bad-pattern", key, str(error), "Write a dotted path; see docs/recipes.md, Paths.")
        return None
    help_ = unknown_role(pattern.role) if pattern.role is not None else None
    if help_ is None:
        return pattern
    report.error("unknown-role", key, f"`{pattern.role}` in `{pattern.text}` is no role", help_)
    return None


def read_dependency(report: Reporter, key: str, value: Any) -> tuple[Pattern | None, Port]:
    """A path with an optional `:output` or `:input`."""
    if not isinstance(value, str) or ":" not in value:
        return read_path(report, key, value), "output"
    path, _, text = value.partition(":")
    ports: dict[str, Port] = {"output": "output", "input": "input"}
    port = ports.get(text.strip())
    if port is None:
        report.error(
            "bad-pattern",
            key,
            f"`:{text}` is no port of a module: write `:output` (the default) or `:input`",
            did_you_mean(text, ports),
        )
    return _pattern(report, key, path), port or "output"


def read_coefficient(report: Reporter, key: str, value: Any) -> Decimal | None:
    """An exact share, 0 < c <= 1; None if absent or wrong."""
    if value is None:
        return None
    try:
        number = parse_coefficient(value)
    except ValueError as error:
        report.error(
            "bad-type",
            key,
            f"the coefficient {error}",
            "Write a number above 0 and at most 1, e.g. 0.5.",
        )
        return None
    if not 0 < number <= 1:
        report.error(
            "out-of-range",
            key,
            f"the coefficient {value} is not above 0 and at most 1",
            "The coefficient is the share of the weight to copy: start with 0.5, then 0.7 and 1.0.",
        )
        return None
    return number


def read_size(report: Reporter, key: str, value: Any, minimum: int) -> int | None:
    """Bytes, at least `minimum`; None if absent or wrong."""
    if value is None:
        return None
    name = key.rpartition(".")[2]
    try:
        size = parse_size(value)
    except SizeError as error:
        report.error("bad-size", key, f"`{name}`: {error}", "Write e.g. 18 MiB (2^20 bytes), 18 MB or bytes.")
        return None
    if size < minimum:
        report.error(
            "out-of-range",
            key,
            f"`{name}` is {value}; it must be at least {minimum} byte{'' if minimum == 1 else 's'}",
            "Leave it out to size by the coefficient." if name == "max_size" else "Leave it out to start at byte 0.",
        )
        return None
    return size
