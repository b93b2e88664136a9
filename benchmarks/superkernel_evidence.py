"""The SuperKernel rows of `evidence.py`: public savings beside the forecast, with what was assumed about each.

Nothing is fitted to a row; the three do not agree with one value of `launch` (see `conf/hardware/atlas_a3.yaml`): S1
needs its low end, S3 more than its high end for the kernels of our model. What the public scopes hold is not known.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.simulator.machine import Machine


@dataclass(frozen=True)
class Saving:
    """A public saving in us, and the forecast of it.

    Attributes:
        published: as published.
        measured: us, in the words of `note`.
        forecast: nominal, low, high, us.
    """

    id: str
    setting: str
    published: str
    measured: float
    forecast: tuple[float, float, float]
    note: str


@dataclass(frozen=True)
class _Step:
    id: str
    setting: str
    published: str
    measured: float
    model: str
    deployment: str
    strategy: str
    per: str  # name of what `measured` is counted per: "layer" or "MoE layer"
    note: str


_STEPS = (
    _Step(
        "S1",
        "SuperKernel: Hy3 295B BF16, A3, 16 dies, batch 4, scope over the layer loop, us/layer",
        "31.5 -> 30.8 ms",
        700 / 80,
        "qwen3_moe",
        "qwen3_moe_a3_ep16",
        "decoder_layers",
        "layer",
        "80 layers; near the noise of the run; Qwen3-MoE stands in",
    ),
    *(
        _Step(
            "S3",
            f"SuperKernel: DeepSeek-V3 decode, A3, scopes {strategy}, us/MoE layer",
            "about 2 of 50 ms",
            2000 / 58,
            "deepseek_v3",
            "deepseek_a3_ep128",
            strategy,
            "MoE layer",
            "58 MoE layers; a comment in a guide; its scopes are not public",
        )
        for strategy in ("moe", "chains")
    ),
)
# Kernels that follow another one: six fragments of five and four kernels, or one of six. The source can be read both
# ways.
_FRAGMENTS = (("six fragments of 5 or 4 kernels", 21), ("one fragment of 6 kernels", 5))


def savings(machine: "Machine", draws: int = 128) -> Iterator[Saving]:
    """Every row; the first three run a traced model."""
    for step in _STEPS:
        yield _of_step(step, machine, draws)
    for words, joined in _FRAGMENTS:
        launch = machine.unknowns["launch"]
        forecast = (joined * launch.nominal, joined * launch.low, joined * launch.high)
        note = f"{words}: {joined} launches; the fused part alone 218.8 -> 190.9 us"
        yield Saving("S4", "SuperKernel: MoE fragments, A3, kernel time, us", "407.5 -> 384.7 us", 27.9, forecast, note)


def _of_step(step: _Step, machine: "Machine", draws: int) -> Saving:
    from models.loading import load, load_deployment, load_spec
    from models.paths import Names
    from models.trace import trace
    from pipeline.scope_spans import Calls
    from pipeline.scope_strategies import STRATEGIES
    from pipeline.simulator.forecast import Baseline
    from pipeline.simulator.fusion import FusedScope

    loaded = load(load_spec(step.model), load_deployment(step.deployment), "ge_graph", "full")
    work = trace(loaded)
    names, calls = Names(loaded.module, loaded.root, loaded.layers), Calls(work)
    scopes = []
    for part in STRATEGIES[step.strategy](names, calls):
        span = calls.span(part.first, part.last)
        assert span is not None
        scopes.append(FusedScope(span.kernels, stream_fusion=True))
    gain = Baseline(work, machine, draws).forecast([], scopes)
    count = work.layers if step.per == "layer" else len(STRATEGIES["moe"](names, calls))
    nominal = (gain.baseline.value - gain.optimised.value) / count
    saved = sorted((gain.baseline_draws - gain.optimised_draws) / count)
    low, high = saved[len(saved) // 10], saved[-1 - len(saved) // 10]
    forecast = (nominal, min(nominal, low), max(nominal, high))
    return Saving(step.id, step.setting, step.published, step.measured, forecast, f"{step.measured:.1f}; {step.note}")
