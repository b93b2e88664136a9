"""The figures of a comparison as records with JSON forms. Nothing here judges.

Every change is % of the baseline, positive = faster, over the steps (`shift.faster`). Levels are medians over the steps
with 10 and 90 %. Everything is measured.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.comparison.shift import faster, level
from pipeline.figures import Figure


@dataclass(frozen=True)
class Change:
    """A time per step in both profiles.

    Attributes:
        label: what it is the time of.
        calls: kernels in a step (of the baseline, or of the only side that has them).
        before, after: us per step; None on the side that does not have it.
        faster: % of the baseline, positive = faster; None if one side does not have it, or it takes no time.
        delta_us: how much more the optimised step spends on it, medians.
    """

    label: str
    calls: int
    before: Figure | None
    after: Figure | None
    faster: Figure | None
    delta_us: float

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "calls": self.calls,
            "baseline": self.before.to_json() if self.before else None,
            "optimized": self.after.to_json() if self.after else None,
            "delta": self.faster.to_json() if self.faster else None,
            "delta_us": self.delta_us,
        }


@dataclass(frozen=True)
class TargetChange:
    """The target kernels at one place of all layers.

    Attributes:
        label, name, op_type, shapes: of the kernel, as `analyze` names its place.
        calls: paired kernels in a step.
        before, after: us of one kernel.
        faster: change of their sum.
        gb_s_before, gb_s_after: bytes of the kernel by its shapes over its time; None if the bytes are not known.
        from_l2: the optimised kernel reads faster than HBM can deliver, so that some of it came from L2; the baseline's
            did not.
        window: the kernels before it; None if there are none.
    """

    label: str
    name: str
    op_type: str
    shapes: str
    calls: int
    before: Figure
    after: Figure
    faster: Figure | None
    gb_s_before: float | None
    gb_s_after: float | None
    from_l2: bool
    window: Change | None

    def to_json(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        del data["before"], data["after"], data["faster"]
        return data | {
            "baseline": self.before.to_json(),
            "optimized": self.after.to_json(),
            "delta": self.faster.to_json() if self.faster else None,
            "window": self.window.to_json() if self.window else None,
        }


@dataclass(frozen=True)
class StreamChange:
    """One stream: time in which it runs kernels (union of intervals), its end, and what is between.

    Attributes:
        name: of the baseline's stream, with that of the optimised one if it is another.
        busy, idle, end: us; idle is the step less the busy time.
        late: it ends later by more than `TAIL_OF_STEP` % of the step, beyond what the busiest stream does, and that is
            no matter of chance. Never the busiest stream itself: that is the critical path.
    """

    name: str
    busy: Change
    idle: Change
    end: Change
    late: bool

    def to_json(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).to_json() for name in ("busy", "idle", "end")}
        return {"stream": self.name, **parts, "late": self.late}


@dataclass(frozen=True, eq=False)
class Measured:
    """All figures of a comparison.

    Attributes:
        step: first start to last end.
        busy, idle: union of the intervals of all streams, and the rest of the step.
        targets: one per place, longest first; `target_sum` all together, None if there are none.
        unpaired_targets: target kernels of the baseline that the optimised step does not have.
        windows: the kernels before any target; None if there are none.
        streams: by name.
        slower: kernels that got slower by more than `TAIL_PERCENT` % and `TAIL_US` us, and that is no matter of chance.
        steady: the kernels that do not wait for memory, targets left out; None if there are none.
        movers: places and kernels of one side only, by how much they change the step's kernel time.
        copies: the copies of prefetches, where the profile has them.
    """

    step: Change
    busy: Change
    idle: Change
    targets: tuple[TargetChange, ...]
    target_sum: Change | None
    unpaired_targets: int
    windows: Change | None
    streams: tuple[StreamChange, ...]
    slower: tuple[Change, ...]
    steady: Change | None
    movers: tuple[Change, ...]
    copies: Change | None


def change(label: str, before: np.ndarray, after: np.ndarray, calls: int) -> Change:
    """A time that both sides have, [steps] each."""
    delta = float(np.median(after) - np.median(before))
    return Change(label, calls, level(before), level(after), faster(before, after), delta)
