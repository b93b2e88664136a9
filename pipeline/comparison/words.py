"""Figures of a comparison as text."""

from pipeline.comparison.changes import Change
from pipeline.figures import Figure, band_text, written


def gain_text(gain: Figure | None) -> str:
    """`+3.52 % [+3.08, +3.81]`, positive = faster; a dash if there is none."""
    return "-" if gain is None else band_text(gain)


def two(change: Change) -> str:
    """`961.3 -> 950.0`; a dash for the side that does not have it."""
    return " -> ".join(written(f.value) if f is not None else "-" for f in (change.before, change.after))


def levels(change: Change) -> str:
    """`1,006.1 -> 970.7 us, +3.52 % [+3.08, +3.81]`."""
    return f"{two(change)} us, {gain_text(change.faster)}"


def amount(change: Change | None) -> str:
    """How much slower, `+4.2 %`."""
    return f"{written(-change.faster.value, 1, sign=True)} %" if change is not None and change.faster else "-"


def spread(figure: Figure | None) -> str:
    """`1,006.1 [1,001.0, 1,012.9]`; the band of 10 and 90 % of the steps."""
    if figure is None:
        return "-"
    if figure.low is None or figure.high is None:
        return written(figure.value)
    return f"{written(figure.value)} [{written(figure.low)}, {written(figure.high)}]"
