"""A prefetch as the simulator sees it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Copy:
    """One prefetch as the copy engine sees it. Copies form one chain, in the order in which they are issued.

    Attributes:
        weight: FQN of the parameter.
        after: index of the kernel whose end releases the copy; -1: the start of the step.
        size: bytes.
        offset: first byte.
    """

    weight: str
    after: int
    size: float
    offset: float = 0
