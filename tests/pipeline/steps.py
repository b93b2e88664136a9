"""Hand-made workloads, plans and forecasts: small enough to check by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from models.workload import Kernel, ModuleCall, WeightRead, Workload
from pipeline.figures import Figure
from pipeline.legality import Placement
from transforms.plan import Plan, Prefetch

MB = 1_000_000


@dataclass(frozen=True)
class Copied:
    """Stands for the simulator's CopyResult."""

    weight: str
    release: float
    start: float
    end: float
    moved: float
    resident: float = 0.0
    useful: float = 0.0
    pushed_out: float = 0.0


@dataclass(frozen=True)
class Step:
    """Stands for the simulator's StepResult."""

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    copies: tuple[Copied, ...] = ()
    kernel_hbm_bytes: tuple[float, ...] = ()

    @property
    def time(self) -> float:
        return max(self.ends)


@dataclass(frozen=True)
class Forecast:
    """Stands for the simulator's Forecast."""

    baseline_step: Step
    optimised_step: Step
    gain: Figure
    limit: Figure = field(default_factory=lambda: Figure(10.0, "us"))

    @property
    def baseline(self) -> Figure:
        return Figure(self.baseline_step.time, "us", self.baseline_step.time * 0.9, self.baseline_step.time * 1.1)

    @property
    def optimised(self) -> Figure:
        return Figure(self.optimised_step.time, "us", self.optimised_step.time * 0.9, self.optimised_step.time * 1.1)


@dataclass(frozen=True)
class Parameters:
    """Stands for the simulator's Parameters: 1 MB/us of HBM, cores do not limit."""

    hbm_peak: float = 1.0 * MB
    cores: int = 24

    def __getitem__(self, name: str) -> float:
        return {"hbm_share": 1.0, "core_bandwidth": 1.0 * MB, "peak_bf16": 1.0 * MB}[name]

    def fixed_us(self, op: str, engine: str) -> float:
        return 2.0


class Machine:
    def nominal(self) -> Any:
        return Parameters()


# o_proj (10 us) -> norm (20 us) -> gate_up (12 us, 10 of them for 10 MB) -> join; beside it a kernel of another stream.
WORKLOAD = Workload(
    kernels=(
        Kernel(0, "MatMul", "model.layers.0.o_proj", "cube", layer=0),
        Kernel(1, "RmsNorm", "model.layers.0.norm", "vector", inputs=(0,), layer=0),
        Kernel(
            2,
            "QuantBatchMatmul",
            "model.layers.0.gate_up",
            "cube",
            weights=(WeightRead("model.layers.0.gate_up.weight", 10 * MB),),
            inputs=(1,),
            layer=0,
        ),
        Kernel(3, "GroupedMatmul", "model.layers.0.experts", "cube", stream="moe", inputs=(0,), layer=0),
        Kernel(4, "Add", "model.layers.0", "vector", inputs=(2, 3), layer=0),
    ),
    calls={"model.layers.0.o_proj": (ModuleCall("model.layers.0.o_proj", 0, 1, None, 0),)},
    layers=1,
    tokens=4.0,
)
PLACES = (Placement(1, 0, 2),)


def plan(size: int = 5 * MB) -> Plan:
    entry = Prefetch("gate_up", "model.layers.0.gate_up.weight", "model.layers.0.o_proj", "output", 0, 10 * MB, size)
    return Plan("small", "small/test", "ge_graph", (entry,))


def step(times: Sequence[float], copies: tuple[Copied, ...] = ()) -> Step:
    """A step from the times of o_proj, norm, gate_up, experts and add."""
    o_proj, norm, gate_up, experts, add = times
    ends = [o_proj, o_proj + norm, o_proj + norm + gate_up, o_proj + experts]
    starts = [0.0, o_proj, o_proj + norm, o_proj]
    joined = max(ends[2], ends[3])
    return Step((*starts, joined), (*ends, joined + add), copies, (0.0, 0.0, 10.0 * MB, 0.0, 0.0))


BASELINE = step((10, 20, 12, 15, 2))


def copy(size: float = 5 * MB, **changes: Any) -> Copied:
    values = {"release": 10.0, "start": 11.5, "end": 16.5, "moved": size, "useful": size}
    return Copied("model.layers.0.gate_up.weight", **{**values, **changes})


def forecast(times: Sequence[float], gain: tuple[float, float, float], **changes: Any) -> Any:
    return Forecast(BASELINE, step(times, (copy(**changes),)), Figure(gain[0], "%", gain[1], gain[2]))
