"""One decode step with one set of parameters, and everything that a report wants to know about it."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.workload import Workload
from pipeline.simulator import engine
from pipeline.simulator.copies import Copy
from pipeline.simulator.fusion import FusedScope, fuse
from pipeline.simulator.pack import PackedWorkload, pack, pack_copies, pack_parameters
from pipeline.simulator.parameters import Parameters


class SimulationError(RuntimeError):
    """Kernels of a workload wait for each other, so that a step never ends."""


@dataclass(frozen=True)
class CopyResult:
    """What became of one copy. Times in us from the start of the step, sizes in bytes.

    Attributes:
        weight: FQN of the parameter.
        release: end of the dependency.
        start: first byte.
        end: last byte.
        moved: bytes brought from HBM.
        resident: bytes of its range that were in L2 already.
        useful: bytes moved that a kernel then did not have to read from HBM.
        pushed_out: bytes moved that had left L2 (or were pushed out by the target's own misses) before they were read.
    """

    weight: str
    release: float
    start: float
    end: float
    moved: float
    resident: float
    useful: float
    pushed_out: float

    @property
    def unused(self) -> float:
        """Bytes moved that stayed in L2 and did not help: experts without tokens, bytes that came too late."""
        return max(0.0, self.moved - self.useful - self.pushed_out)


@dataclass(frozen=True)
class StepResult:
    """One decode step.

    Attributes:
        time: us from the start of the step to the end of its last kernel.
        starts, ends: per kernel, us.
        copies: per copy, in chain order.
        hits: per kernel, bytes found in L2.
        kernel_hbm_bytes: per kernel, bytes drawn from HBM.
        hbm_bytes: bytes drawn from HBM, copies included.
        rules: how often each rule of the model decided something.
    """

    time: float
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    copies: tuple[CopyResult, ...]
    hits: tuple[float, ...]
    kernel_hbm_bytes: tuple[float, ...]
    hbm_bytes: float
    rules: dict[str, int]

    def durations(self) -> list[float]:
        """Time of each kernel, us."""
        return [end - start for start, end in zip(self.starts, self.ends, strict=True)]


def simulate(
    workload: Workload,
    copies: Sequence[Copy],
    parameters: Parameters,
    steps: int = 1,
    scopes: Sequence[FusedScope] = (),
) -> StepResult:
    """Run one decode step.

    Args:
        workload: the step's kernels.
        copies: the plan, in issue order; empty for the baseline.
        parameters: one value for every unknown.
        steps: 1: L2 holds no weights at the start; n: the last of n equal steps, each on the L2 of the one before.
        scopes: SuperKernel scopes.

    Raises:
        SimulationError: kernels wait for each other; names them.
        ValueError: a copy waits for a kernel that does not exist, or scopes overlap.
    """
    packed = fuse(packed_workload(workload), workload, scopes)
    rows, fixed = pack_parameters(packed, [parameters])
    return run(workload, packed, copies, rows[0], fixed[0], steps)


def run(
    workload: Workload,
    packed: PackedWorkload,
    copies: Sequence[Copy],
    row: np.ndarray,
    fixed: np.ndarray,
    steps: int = 1,
) -> StepResult:
    """`simulate` on what is packed already."""
    n, c = len(packed.arrays.op), len(copies)
    out = engine.Outcome(
        start=np.zeros(n),
        end=np.zeros(n),
        hits=np.zeros(n),
        hbm=np.zeros(n),
        copy=np.zeros((c, 7)),
        rules=np.zeros(len(engine.RULES), np.int64),
    )
    time = float(engine.run_detailed(packed.arrays, pack_copies(packed, copies), row, fixed, steps, out))
    if time < 0.0:
        raise SimulationError(_stuck(workload, out.end))
    results = tuple(CopyResult(copy.weight, *values) for copy, values in zip(copies, out.copy.tolist(), strict=True))
    return StepResult(
        time=time,
        starts=tuple(out.start.tolist()),
        ends=tuple(out.end.tolist()),
        copies=results,
        hits=tuple(out.hits.tolist()),
        kernel_hbm_bytes=tuple(out.hbm.tolist()),
        hbm_bytes=float(out.hbm.sum() + out.copy[:, 3].sum()),
        rules=dict(zip(engine.RULES, out.rules.tolist(), strict=True)),
    )


def packed_workload(workload: Workload) -> PackedWorkload:
    """`pack`, remembered for as long as the workload lives."""
    known = _PACKED.get(id(workload))
    if known is None:
        known = _PACKED[id(workload)] = pack(workload)
        weakref.finalize(workload, _PACKED.pop, id(workload), None)
    return known


_PACKED: dict[int, PackedWorkload] = {}


def _stuck(workload: Workload, ends: np.ndarray) -> str:
    names = [f"{k.index} ({k.op} of {k.module or 'the model'})" for k in workload.kernels if ends[k.index] < 0.0]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"these kernels wait for each other and never run: {shown}"
