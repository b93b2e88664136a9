"""Benchmark (a): load, trace, plan and simulate full-size LongCat-Flash in one fresh process.

    python benchmarks/load_to_plan.py [overrides, e.g. deployment=longcat_a3_ep32]

Prints seconds per stage and the peak resident memory against the limits, and exits with 1 if one is exceeded. Imports
count; so does compiling the simulator (in `baseline`), which later processes read from a cache.
Set `NUMBA_CACHE_DIR` to an empty directory to see the first process.
"""

import resource
import sys
import time

SECONDS = 15.0
MIB = 2048.0
OVERRIDES = ["recipe=longcat_flash/decode_prefetch", "recipe.prefetch.coefficient=0.5"]


class Stages:
    """Wall-clock seconds between marks, and the peak resident memory of the process at each."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float, str]] = []
        self._last = time.perf_counter()

    def mark(self, name: str, result: str) -> None:
        now = time.perf_counter()
        self.rows.append((name, now - self._last, peak_mib(), result))
        self._last = now

    @property
    def total(self) -> float:
        return sum(seconds for _, seconds, _, _ in self.rows)


def peak_mib() -> float:
    """Peak resident memory, MiB (Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


def measure(overrides: list[str]) -> Stages:
    """Run the stages of `npu-recipes run` that depend on the model's size, one after the other."""
    stages = Stages()
    import torch

    from models.loading import load
    from models.problems import raise_errors
    from models.trace import trace
    from pipeline.compose import compose_grid
    from pipeline.experiment import build_experiment
    from pipeline.overrides import read_overrides
    from pipeline.resolve import resolve
    from pipeline.simulator.forecast import Baseline, forecast
    from pipeline.windows import copies_of

    stages.mark("import", f"torch {torch.__version__}")
    parsed, problems = read_overrides(overrides)
    raise_errors(problems)
    (point,) = compose_grid(parsed, sweep=False)
    experiment = build_experiment(point.config, point.sources())
    stages.mark("compose", f"{experiment.model.name}, {experiment.deployment.name}")
    loaded = load(experiment.model, experiment.deployment, experiment.exe_mode, "full")
    parameters = sum(p.numel() for p in loaded.module.parameters())
    stages.mark("load", f"{parameters / 1e9:.1f} G parameters on this die")
    workload = trace(loaded)
    stages.mark("trace", f"{len(workload.kernels)} kernels, {workload.layers} layers")
    machine = experiment.machine.for_mode(experiment.exe_mode)
    baseline = Baseline(workload, machine, experiment.draws, experiment.seed)
    stages.mark("baseline", f"{baseline.step.time / 1000:.2f} ms (modelled)")
    resolution = resolve(
        experiment.recipe, loaded, workload, machine, exe_mode=experiment.exe_mode, baseline=baseline.step
    )
    raise_errors(resolution.problems)
    stages.mark("plan", f"{len(resolution.plan.prefetch)} prefetches")
    copies = copies_of(resolution.plan, workload)
    result = forecast(workload, copies, machine, experiment.draws, experiment.seed, baseline)
    stages.mark("simulate", f"gain {result.gain.value:+.1f} {result.gain.unit} (modelled), {experiment.draws} draws")
    return stages


def main() -> int:
    from models.problems import RefusedError

    try:
        stages = measure(sys.argv[1:] or OVERRIDES)
    except RefusedError as refused:
        print(refused, file=sys.stderr)
        return 2
    print(f"{'stage':<10}{'s':>8}{'peak MiB':>10}  result")
    for name, seconds, peak, result in stages.rows:
        print(f"{name:<10}{seconds:8.2f}{peak:10.0f}  {result}")
    print(f"{'total':<10}{stages.total:8.2f}{peak_mib():10.0f}")
    print(f"{'limit':<10}{SECONDS:8.2f}{MIB:10.0f}")
    exceeded = [n for n, ok in (("time", stages.total <= SECONDS), ("memory", peak_mib() <= MIB)) if not ok]
    print(f"EXCEEDED: {', '.join(exceeded)}" if exceeded else "within the limits")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
