"""The verification ladder below performance: does it compile, compute the same, and make the planned calls?"""

from pipeline.verify.compiles import check_compiles
from pipeline.verify.numerics import Baseline, Build, NumericsResult, baseline_run, check_numerics
from pipeline.verify.observation import Observation, observe_calls

__all__ = [
    "Baseline",
    "Build",
    "NumericsResult",
    "Observation",
    "baseline_run",
    "check_compiles",
    "check_numerics",
    "observe_calls",
]
