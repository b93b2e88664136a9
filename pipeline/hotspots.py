"""Where the time of a step goes: kernels grouped by operator and place, with the share that HBM takes."""

import re
from typing import TYPE_CHECKING

from models.workload import Workload
from pipeline.effects import hbm_time
from pipeline.figures import Figure
from pipeline.record import Hotspot
from transforms.plan import Plan

if TYPE_CHECKING:
    from pipeline.simulator.parameters import Parameters
    from pipeline.simulator.simulate import StepResult

_INDEX = re.compile(r"\.\d+(?=\.)")


def hotspots(
    workload: Workload, plan: Plan, step: "StepResult", parameters: "Parameters", count: int = 10
) -> list[Hotspot]:
    """The groups that take longest, longest first.

    Args:
        workload: the step's kernels.
        plan: names the targets that a group belongs to.
        step: the baseline.
        parameters: the machine's nominal values.
        count: at most so many groups.
    """
    targets = {p.weight: p.target for p in plan.prefetch}
    times: dict[tuple[str, str], list[float]] = {}
    names: dict[tuple[str, str], dict[str, None]] = {}
    total = 0.0
    for kernel in workload.kernels:
        if kernel.engine == "idle":
            continue
        # The first index is the layer's; a second one (`self_attn.0`) tells two places apart.
        group = (kernel.op, _INDEX.sub(".{i}", kernel.module, count=1))
        time = step.ends[kernel.index] - step.starts[kernel.index]
        total += time
        sums = times.setdefault(group, [0.0, 0.0, 0.0])
        sums[0] += 1
        sums[1] += time
        sums[2] += hbm_time(kernel, time, step.kernel_hbm_bytes[kernel.index], parameters)
        for read in kernel.weights:
            if read.weight in targets:
                names.setdefault(group, {})[targets[read.weight]] = None
    longest = sorted(times.items(), key=lambda item: -item[1][1])[:count]
    return [
        Hotspot(
            op,
            module,
            int(number),
            Figure(time, "us"),
            Figure(100 * time / total if total else 0.0, "%"),
            Figure(100 * min(1.0, alone / time) if time else 0.0, "%"),
            ", ".join(names.get((op, module), ())),
        )
        for (op, module), (number, time, alone) in longest
    ]
