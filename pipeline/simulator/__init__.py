"""The simulator: replays a workload on a model of the NPU. Everything it says is *modelled*.

`machine` and `copies` need no compiler. `simulate` (one step in detail), `forecast` (bands, many plans) and `limit` are
modules; their classes are offered here too and load numba when first asked for.
"""

from typing import TYPE_CHECKING, Any

from pipeline.simulator.copies import Copy
from pipeline.simulator.machine import Machine, Unknown
from pipeline.simulator.parameters import Parameters

if TYPE_CHECKING:
    from pipeline.simulator.forecast import Baseline, Forecast
    from pipeline.simulator.simulate import CopyResult, StepResult

__all__ = ["Baseline", "Copy", "CopyResult", "Forecast", "Machine", "Parameters", "StepResult", "Unknown"]


def __getattr__(name: str) -> Any:
    if name in ("Baseline", "Forecast"):
        from pipeline.simulator import forecast

        return getattr(forecast, name)
    if name in ("CopyResult", "StepResult"):
        from pipeline.simulator import simulate

        return getattr(simulate, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
