"""Benchmark: every public measurement that forecasts are judged by, beside the forecast, with a ratio.

    python benchmarks/evidence.py

Kernel times come from the traced LongCat-Flash (W8A8, dense TP 8, o_proj TP 8) and from one set of nominal parameters,
`conf/hardware/atlas_a3.yaml` (910B rows: `atlas_a2.yaml`); nothing is fitted to a row. Each kernel runs alone on a cold
L2: whether prefetch was on when these were measured is not public. Forecasts show the band of 10 to 90 % over 256 draws
of all unknowns. Exits with 1 if a weight-bound kernel is more than 25 % off in either column; other rows that miss are
shown as missing, rows of models that do not exist here yet as such.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.workload import Kernel
    from pipeline.simulator.machine import Machine

WITHIN = 0.25
NO_MODEL = "no model yet"


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        measured: as published; a number (us) if a kernel time.
        forecast: (nominal, low, high) in us, or None.
        required: the row is weight-bound, so missing it fails the benchmark.
        note: what a reader has to know.
    """

    id: str
    setting: str
    measured: float | str
    forecast: tuple[float, float, float] | None = None
    required: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Forecast / measured."""
        if self.forecast is None or isinstance(self.measured, str):
            return None
        return self.forecast[0] / self.measured

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return self.note
        text = f"within {WITHIN:.0%}" if abs(self.ratio - 1) <= WITHIN else "MISS"
        return f"{text}; {self.note}" if self.note else text


# What was published without a kernel that we could run: id, setting, result, why there is no forecast.
PUBLISHED = [
    ("P1", "DeepSeek-class W8A8 MoE, A2, expert gate_up prefetch 10 MB (vllm-ascend PR 1509)", "+0.03 %", NO_MODEL),
    ("P2", "same, 80 MB", "+2.05 %", NO_MODEL),
    ("P3", "same, 100 MB", "+2.14 %", NO_MODEL),
    ("P4", "same, 120 MB", "+1.50 %", NO_MODEL),
    ("P5", "same, expert parallel off, 80 MB", "+0.35 %", NO_MODEL),
    ("P6", "Qwen3-235B BF16, A3, tp4 dp4, attention + MoE prefetch (PR 2550)", "112 -> 102 ms", NO_MODEL),
    ("P7", "same, tp1 dp16 decode node", "105 -> 102 ms", NO_MODEL),
    ("P8", "same, W8A8", "109 -> 102 ms", NO_MODEL),
    ("P9", "MLA model W8A8, duplicate o_proj prefetch removed (PR 6629)", "+4.9 %", NO_MODEL),
    ("P11", "LongCat-Flash-Lite 69B, EP8, W8A8, A3", "inside noise", NO_MODEL),
    ("S1", "SuperKernel: Hy3 295B BF16, A3, 16 dies, scope over the layer loop", "31.5 -> 30.8 ms", NO_MODEL),
    ("S3", "SuperKernel: DeepSeek-V3 decode, A3", "about 2 of 50 ms", NO_MODEL),
    ("S4", "SuperKernel: MoE fragments, A3, summed kernel time", "407.5 -> 384.7 us", NO_MODEL),
]

# Name, measured on 24 AIC / 48 AIV and on 12 AIC / 24 AIV (us), operator, end of the module's name, weight-bound, note.
# The last field is what is not known about the measurement, or what the forecast leaves out.
KERNELS = [
    ("MLAProlog", 45.2, 68.1, "MLAProlog", "self_attn.0", True, "60.75 MiB and the 8 MiB of w_k"),
    (
        "FusedInferAttentionScore",
        91.8,
        118.0,
        "FusedInferAttentionScore",
        "self_attn.0",
        False,
        "batch, context unknown",
    ),
    ("MatMul (router)", 14.2, 18.0, "MatMul", "router.classifier", True, "18 MiB"),
    ("TransposeBatchMatMul", 12.5, 19.6, "TransposeBatchMatMul", "self_attn.0", False, "8 MiB; more than bandwidth"),
    ("QuantBatchMatmul 1 (gate_up)", 14.6, 18.7, "QuantBatchMatmul", "mlps.0.gate_up_proj", True, "18 MiB"),
    (
        "QuantBatchMatmul 2 (down)",
        16.3,
        20.1,
        "QuantBatchMatmul",
        "mlps.0.down_proj",
        False,
        "9 MiB, if it is this one",
    ),
]


def alone(kernel: "Kernel", machine: "Machine", cores: int) -> tuple[float, float, float]:
    """Time of one kernel on a cold L2 with nothing beside it: nominal, low, high (us)."""
    from models.workload import Workload
    from pipeline.simulator.forecast import Baseline

    step = Workload((replace(kernel, index=0, stream="main", cores=cores, inputs=()),))
    result = Baseline(step, machine).forecast([]).baseline
    assert result.low is not None and result.high is not None
    return result.value, result.low, result.high


def longcat_rows(machine: "Machine") -> Iterator[Row]:
    """Kernel times of LongCat-Flash W8A8 on one A3 die (cann-recipes)."""
    from models.loading import load, load_deployment, load_spec
    from models.trace import trace

    loaded = load(load_spec("longcat_flash"), load_deployment("longcat_a3_ep128"), "ge_graph", "full")
    kernels = [kernel for kernel in trace(loaded).kernels if kernel.layer == 1]
    for column, cores in enumerate((24, 12)):
        for name, full, half, op, module, required, note in KERNELS:
            (kernel,) = (k for k in kernels if k.op == op and k.module.endswith(module))
            forecast = alone(kernel, machine, cores)
            yield Row("K", f"{name}, {cores} AIC", (full, half)[column], forecast, required, note)


def small_dense_rows(machine: "Machine") -> Iterator[Row]:
    """Profile rows of a 1024-wide FP16 model, batch 1, 910B."""
    from models.workload import Kernel, WeightRead

    for name, measured, columns in (("MatMul 1024x3072", 5.44, 3072), ("lm_head 1024x103424", 155.9, 103424)):
        read = WeightRead("weight", 2 * 1024 * columns)
        flops = 2.0 * 1024 * columns
        kernel = Kernel(0, "MatMul", "", "cube", flops=flops, weights=(read,), other_bytes=2.0 * (1024 + columns))
        yield Row("D", f"{name}, FP16, batch 1, 910B", measured, alone(kernel, machine, 0))


def gap_row(machine: "Machine") -> Row:
    gap = machine.unknowns["gap"]
    forecast = (gap.nominal, gap.low, gap.high)
    return Row("D", "idle between kernels of a static graph", "0.02 to 0.9 us", forecast, note="an input of the model")


def rows() -> list[Row]:
    """Every row of the evidence."""
    from pipeline.simulator.machine import load_machine

    a2, a3 = load_machine("atlas_a2"), load_machine("atlas_a3")
    published = [Row(name, setting, measured, note=why) for name, setting, measured, why in PUBLISHED]
    return [*longcat_rows(a3), *small_dense_rows(a2), gap_row(a2), *published]


def main() -> int:
    table = rows()
    width = max(len(row.setting) for row in table)
    print(f"{'id':<4}{'setting':<{width + 2}}{'measured':>18}{'modelled [10-90 %]':>24}{'ratio':>7}  verdict")
    for row in table:
        measured = row.measured if isinstance(row.measured, str) else f"{row.measured:.2f} us"
        band = "{:.2f} [{:.2f}, {:.2f}]".format(*row.forecast) if row.forecast else ""
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        print(f"{row.id:<4}{row.setting:<{width + 2}}{measured:>18}{band:>24}{ratio:>7}  {row.verdict}")
    required = [row for row in table if row.required]
    missed = [row.setting for row in required if row.ratio is None or abs(row.ratio - 1) > WITHIN]
    print(f"\n{len(required) - len(missed)} of {len(required)} weight-bound kernel times within {WITHIN:.0%}", end="")
    print(f"; MISSED: {', '.join(missed)}" if missed else "")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
