"""A figure: a number with its unit, its band and where it comes from."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Provenance = Literal["measured", "modelled"]


def written(value: float, digits: int = 1, sign: bool = False) -> str:
    """`1,234.5`, `+1.23`; a rounding residue is no change, so never `-0.00` or `+0.00`."""
    text = format(value, f"{'+' if sign else ''},.{digits}f")
    return text if any(c in "123456789" for c in text) else text.lstrip("+-")


@dataclass(frozen=True)
class Figure:
    """One reported number.

    Attributes:
        value: nominal (modelled) or central (measured) value.
        unit: e.g. `us`, `%`, `MiB`, `tokens/s`.
        low, high: the band; None if the figure has none (exact counts of bytes).
        provenance: `measured` or `modelled`.
    """

    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    provenance: Provenance = "modelled"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def band_text(figure: Figure) -> str:
    """`+7.50 % [+4.10, +9.30]`: shares of a baseline carry their sign; without brackets if there is no band."""
    value = written(figure.value, 2, sign=figure.unit == "%")
    if figure.low is None or figure.high is None:
        return f"{value} {figure.unit}"
    low, high = (written(v, 2, sign=figure.unit == "%") for v in (figure.low, figure.high))
    return f"{value} {figure.unit} [{low}, {high}]"
