"""How rewritten source names the two levers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lever:
    """How the source names a lever.

    Attributes:
        name: of the attribute that holds the switch.
        passed: the parameter of functions that can't tell the phase themselves.
    """

    name: str
    passed: str

    @property
    def switch(self) -> str:
        return f"self.{self.name}"

    @property
    def guard_names(self) -> tuple[str, ...]:
        return (self.passed, f"{self.passed}_now", f"npu_{self.passed}_now")


PREFETCH = Lever("enable_prefetch", "prefetch")
SUPERKERNEL = Lever("enable_superkernel", "superkernel")
