"""Benchmark (d): plans per second in batch evaluation of full-size LongCat-Flash.

    python benchmarks/batch_evaluation.py [plans]

Evaluates distinct plans (subsets of the recipe's targets at many coefficients) together on two cores, all layers, and
each plan by itself, and exits with 1 if the rate or the agreement misses its limit. Packing the plans counts; loading,
tracing and compiling happen once before.
"""

import random
import sys
import time

PLANS_PER_SECOND = 500.0
TOLERANCE = 1e-9  # per cent of gain
CORES = 2


def main() -> int:
    import numba

    from models.loading import load, load_deployment, load_spec
    from models.trace import trace
    from pipeline.compose import compose_grid
    from pipeline.experiment import build_experiment
    from pipeline.overrides import read_overrides
    from pipeline.resolve import resolve
    from pipeline.simulator.copies import Copy
    from pipeline.simulator.forecast import Baseline
    from pipeline.windows import copies_of

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    overrides, _ = read_overrides(["recipe=longcat_flash/decode_prefetch", "recipe.prefetch.coefficient=1.0"])
    (point,) = compose_grid(overrides, sweep=False)
    experiment = build_experiment(point.config, point.sources())
    loaded = load(load_spec("longcat_flash"), load_deployment("longcat_a3_ep128"), experiment.exe_mode, "full")
    workload = trace(loaded)
    baseline = Baseline(workload, experiment.machine, draws=0, workers=CORES)
    plan = resolve(
        experiment.recipe, loaded, workload, experiment.machine, exe_mode=experiment.exe_mode, baseline=baseline.step
    ).plan
    whole = list(zip(plan.prefetch, copies_of(plan, workload), strict=True))
    targets = sorted({entry.target for entry in plan.prefetch})

    rng = random.Random(0)
    plans = []
    for number in range(count):
        coefficient = 0.2 + 0.8 * number / count
        chosen = set(rng.sample(targets, rng.randint(len(targets) - 3, len(targets))))
        plans.append(
            [Copy(c.weight, c.after, int(c.size * coefficient), c.offset) for e, c in whole if e.target in chosen]
        )

    baseline.evaluate_many(plans[:4])
    started = time.perf_counter()
    together = baseline.evaluate_many(plans)
    rate = count / (time.perf_counter() - started)
    baseline.forecast(plans[0])
    started = time.perf_counter()
    singles = [baseline.forecast(plan).gain.value for plan in plans]
    single_rate = count / (time.perf_counter() - started)
    worst = max(abs(gain.value - single) for gain, single in zip(together, singles, strict=True))

    kernels, copies = len(workload.kernels), sum(map(len, plans)) / count
    print(f"{kernels} kernels, {workload.layers} layers, {count} plans of {copies:.0f} copies on average; ", end="")
    print(f"{len(set(singles))} distinct gains from {min(singles):+.2f} to {max(singles):+.2f} % (modelled)")
    print(f"numba {numba.__version__}, {CORES} threads\n")
    print(f"{'':<28}{'value':>12}{'limit':>12}")
    print(f"{'plans/s together':<28}{rate:>12.0f}{PLANS_PER_SECOND:>12.0f}")
    print(f"{'plans/s one by one':<28}{single_rate:>12.0f}{'':>12}")
    print(f"{'largest difference, %':<28}{worst:>12.1e}{TOLERANCE:>12.1e}")
    missed = [name for name, bad in (("rate", rate < PLANS_PER_SECOND), ("agreement", worst > TOLERANCE)) if bad]
    print(f"MISSED: {', '.join(missed)}" if missed else "within the limits")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
