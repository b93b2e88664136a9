"""A figure: a number with its unit, its band and where it comes from."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Provenance = Literal["measured", "modelled"]


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
