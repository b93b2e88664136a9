"""Decode told from prefill: by the rows that MatMuls have, and by kernels that only one of them uses."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

ORDER = ("decode", "prefill", "training", "unknown")
# Steps with so many times the rows of the smallest steps are no decode beside them.
_MANY = 8


@dataclass(frozen=True)
class Phase:
    """Steps of one kind.

    Attributes:
        name: one of `ORDER`.
        steps: their numbers.
        rows: median rows of the activation, weighted by time; None without MatMuls of known shapes.
        constant: whether all steps have the same rows.
        word: the kind of kernel that told, "" if the rows did.
    """

    name: str
    steps: tuple[int, ...]
    rows: int | None
    constant: bool
    word: str


def find_phases(kernels: "pl.DataFrame", table: "pl.DataFrame", decode_rows: float) -> list[Phase]:
    """Sort the steps.

    Args:
        kernels: of `steps.Steps`.
        table: of `roofline.Signatures`.
        decode_rows: rows up to which a step counts as decode.

    Returns:
        The phases that occur, decode first.
    """
    import polars as pl

    about = table.select("key", "rows", "phase", pl.col("experts") > 0)
    known = kernels.filter(pl.col("step").is_not_null()).join(about, on="key", how="left")
    numbers = known["step"].unique().sort()
    words = dict(known.filter(pl.col("phase") != "").group_by("step").agg(pl.col("phase").unique().sort()).iter_rows())
    # Rows of an expert stack are those of all its experts: they say nothing about the sequence.
    rows = _weighted_rows(known.filter(pl.col("rows").is_not_null() & ~pl.col("experts"))) or _weighted_rows(
        known.filter(pl.col("rows").is_not_null())
    )
    fewest = min(rows.values(), default=0)
    found: dict[str, list[int]] = {}
    told: dict[str, str] = {}
    for number in numbers:
        name, word = _name(words.get(number, []), rows.get(number), fewest, decode_rows)
        found.setdefault(name, []).append(number)
        told[name] = word if told.get(name, word) == word else ""
    phases = []
    for name in ORDER:
        if name in found:
            its = [rows[n] for n in found[name] if n in rows]
            middle = sorted(its)[len(its) // 2] if its else None
            phases.append(Phase(name, tuple(found[name]), middle, len(set(its)) <= 1, told[name]))
    return phases


def _weighted_rows(known: "pl.DataFrame") -> dict[int, int]:
    """Step -> rows above and below which equal time is spent."""
    import polars as pl

    per = known.group_by("step", "rows").agg(pl.col("duration_us").sum()).sort("step", "rows")
    share = pl.col("duration_us").cum_sum().over("step") / pl.col("duration_us").sum().over("step")
    middle = per.filter(share >= 0.5).group_by("step", maintain_order=True).agg(pl.col("rows").first())
    return {int(step): int(rows) for step, rows in middle.iter_rows()}


def _name(words: list[str], rows: int | None, fewest: int, decode_rows: float) -> tuple[str, str]:
    if "training" in words:
        return "training", "training"
    if len(words) == 1:
        return words[0], words[0]
    if rows is None:
        return "unknown", ""
    many = rows > decode_rows or (rows >= _MANY * fewest and rows > 64)
    return ("prefill" if many else "decode"), ""
