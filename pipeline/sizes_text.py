"""Sizes as people write them: `18 MiB` is 18 x 2^20 bytes, `18 MB` is 18 x 10^6."""

import re
from decimal import Decimal
from typing import Any

_UNITS = {
    "B": 1,
    **{f"{p}B": 1000**n for n, p in enumerate(("k", "M", "G", "T"), 1)},
    "KB": 1000,
    **{f"{p}iB": 1024**n for n, p in enumerate(("K", "M", "G", "T"), 1)},
}
_SIZE = re.compile(r"\s*([+-]?\d+(?:_\d+)*(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


class SizeError(ValueError):
    """Not a size; the message says what is allowed."""


def parse_size(value: Any) -> int:
    """Bytes of a size. The sign is kept: ranges are the caller's business.

    Args:
        value: a whole number of bytes, or a text like `18 MiB`, `6.75MiB`, `18 MB`, `18874368`.

    Raises:
        SizeError: another type, another unit, or not a whole number of bytes.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SizeError(f"{value!r} is not a size: write bytes, or a text like 18 MiB")
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if not value.is_integer():
            raise SizeError(f"{value!r} is not a whole number of bytes")
        return int(value)
    match = _SIZE.match(value)
    if match is None:
        raise SizeError(f"{value!r} is not a size: write bytes, or a text like 18 MiB")
    unit = match[2] or "B"
    if unit not in _UNITS:
        near = [u for u in _UNITS if u.lower() == unit.lower()] or ["MiB (2^20 bytes)", "MB (10^6 bytes)"]
        raise SizeError(f"unknown unit {unit!r} in {value!r}: write {' or '.join(near)}")
    total = Decimal(match[1].replace("_", "")) * _UNITS[unit]
    if total != total.to_integral_value():
        raise SizeError(f"{value!r} is not a whole number of bytes")
    return int(total)


def format_size(size: int) -> str:
    """Exact text of a size that `parse_size` reads back: its largest binary unit, or bytes."""
    for unit in ("GiB", "MiB", "KiB"):
        if abs(size) >= _UNITS[unit]:
            scaled = Decimal(size) / _UNITS[unit]
            if scaled == scaled.quantize(Decimal("0.001")):
                return f"{_trim(scaled)} {unit}"
            break
    return f"{size} B"


def approximate_size(size: float) -> str:
    """Readable text of a size, three significant decimals at most; not always exact."""
    for unit in ("GiB", "MiB", "KiB"):
        if abs(size) >= _UNITS[unit]:
            return f"{_trim(Decimal(f'{size / _UNITS[unit]:.2f}'))} {unit}"
    return f"{_trim(Decimal(f'{size:.0f}'))} B"


def _trim(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
