"""What a check of a lowered graph found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One way in which the graph is not what was planned, or something about it that one should know.

    Attributes:
        code: prefetch: `missing`, `unplanned`, `size`, `offset`, `bounds`, `source`, `dependency`,
            `dependency-is-input`, `dependency-not-called`, `order`, `chain`, `late`, `unread`; of npugraph_ex also
            `stream`, `event`, `join`, `race`, `ge-only`. SuperKernel: see `scope_checks.check_scopes`. `cycle`.
        entry: the plan's entry in words; "" for what no entry planned.
        message: what was expected, and what was found.
    """

    code: str
    entry: str
    message: str

    def __str__(self) -> str:
        return f"{self.entry}: {self.message}" if self.entry else self.message

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "entry": self.entry, "message": self.message}
