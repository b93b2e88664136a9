"""The simulator: replays a workload on a model of the NPU. Everything it says is *modelled*.

Here is what needs no compiler (numba): what a machine and a copy are. What runs is in `pipeline.simulator.simulate`,
`.forecast` (bands, many plans) and `.limit`.
"""

from pipeline.simulator.copies import Copy
from pipeline.simulator.machine import Machine, Unknown
from pipeline.simulator.parameters import Parameters

__all__ = ["Copy", "Machine", "Parameters", "Unknown"]
