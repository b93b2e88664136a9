"""Forecasts: baseline against plan under every draw of the unknowns, for one plan or for many."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from models.workload import Workload
from pipeline.figures import Figure
from pipeline.simulator import engine
from pipeline.simulator.copies import Copy
from pipeline.simulator.fusion import FusedScope, fuse
from pipeline.simulator.limit import physical_limit
from pipeline.simulator.machine import Machine
from pipeline.simulator.pack import PackedWorkload, pack_copies, pack_parameters
from pipeline.simulator.simulate import SimulationError, StepResult, packed_workload, run

BAND = (0.10, 0.90)  # quantiles that a band spans


@dataclass(frozen=True)
class Forecast:
    """What a plan does to the step. All modelled.

    Attributes:
        baseline, optimised: time of the step in us, nominal and band.
        gain: time saved in per cent of the baseline, positive is faster; the band is of the *paired* gain (both under
            the same draw), so it may be narrow while those of the times are wide.
        limit: physical limit, us.
        baseline_step, optimised_step: the nominal steps.
        baseline_draws, optimised_draws, gain_draws: per draw of the unknowns.
    """

    baseline: Figure
    optimised: Figure
    gain: Figure
    limit: Figure
    baseline_step: StepResult
    optimised_step: StepResult
    baseline_draws: np.ndarray = field(repr=False)
    optimised_draws: np.ndarray = field(repr=False)
    gain_draws: np.ndarray = field(repr=False)


class Baseline:
    """The baseline of one workload on one machine: packed once, its draws run once, then reused by every plan.

    Attributes:
        step: the nominal baseline step.
        times: its time under each draw, us.
    """

    def __init__(
        self,
        workload: Workload,
        machine: Machine,
        draws: int = 256,
        seed: int = 0,
        steps: int = 1,
        workers: int | None = None,
    ) -> None:
        """Pack the workload and run the baseline.

        Args:
            workload: one decode step.
            machine: where it runs; apply `Machine.for_mode` first.
            draws: how many assignments of the unknowns.
            seed: of the draws.
            steps: 1 for a cold L2 at the start of the step, 2 for the second of two equal steps.
            workers: threads; None: as many as this process may use. Results do not depend on it.

        Raises:
            SimulationError: kernels of the workload wait for each other.
        """
        self.workload, self.machine, self.draws, self.seed, self.steps = workload, machine, draws, seed, steps
        self._workers = workers or _cores()
        self.packed: PackedWorkload = packed_workload(workload)
        self._rows, self._fixed = pack_parameters(self.packed, [machine.nominal(), *machine.draws(draws, seed)])
        self.step = self.simulate([])
        self.times = self.run_draws([[]], slice(1, None))[0]
        self.limit = physical_limit(workload, machine)

    def simulate(self, copies: Sequence[Copy], scopes: Sequence[FusedScope] = ()) -> StepResult:
        """The nominal step of one plan, in detail."""
        fused = fuse(self.packed, self.workload, scopes)
        return run(self.workload, fused, copies, self._rows[0], self._fixed[0], self.steps)

    def run_draws(self, plans: Sequence[Sequence[Copy]], draws: slice, scopes: Sequence[FusedScope] = ()) -> np.ndarray:
        """Times [plans, draws] in us; draw 0 is the nominal assignment, the others follow. All with these scopes."""
        arrays = fuse(self.packed, self.workload, scopes).arrays
        packed = pack_copies(self.packed, [copy for plan in plans for copy in plan])
        bounds = np.concatenate(([0], np.cumsum([len(plan) for plan in plans]))).astype(np.int64)
        rows, fixed = self._rows[draws], self._fixed[draws]
        times = np.zeros((len(plans), len(rows)))
        for_plans = len(plans) >= len(rows)  # split what there is more of between the threads
        total = len(plans) if for_plans else len(rows)

        def part(first: int, last: int) -> None:
            plan_range, draw_range = ((first, last), (0, len(rows))) if for_plans else ((0, len(plans)), (first, last))
            engine.run_many(arrays, packed, bounds, rows, fixed, self.steps, plan_range, draw_range, times)

        workers = min(self._workers, max(1, times.size // 16))
        if workers == 1:
            part(0, total)
        else:
            edges = [total * k // workers for k in range(workers + 1)]
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(part, edges[:-1], edges[1:]))
        if (times < 0.0).any():
            raise SimulationError("kernels of the workload wait for each other")
        return times

    def forecast(self, copies: Sequence[Copy], scopes: Sequence[FusedScope] = ()) -> Forecast:
        """Forecast one plan, its copies and its SuperKernel scopes, with its band over all draws."""
        optimised = self.simulate(copies, scopes)
        times = self.run_draws([copies], slice(1, None), scopes)[0]
        gains = _gain(self.times, times)
        return Forecast(
            baseline=_figure(self.step.time, self.times, "us"),
            optimised=_figure(optimised.time, times, "us"),
            gain=_figure(float(_gain(self.step.time, optimised.time)), gains, "%"),
            limit=Figure(self.limit, "us"),
            baseline_step=self.step,
            optimised_step=optimised,
            baseline_draws=self.times,
            optimised_draws=times,
            gain_draws=gains,
        )

    def evaluate_many(
        self, plans: Sequence[Sequence[Copy]], draws: int = 0, scopes: Sequence[FusedScope] = ()
    ) -> list[Figure]:
        """Gain of each plan in per cent, nominal, with a paired band over the first `draws` draws if any.

        The plans have the scopes in common; the baseline has none. The gains equal those of `forecast` on the same
        plans.

        Raises:
            ValueError: more draws than the baseline has.
        """
        if draws > self.draws:
            raise ValueError(f"{draws} draws asked for, the baseline has {self.draws}")
        if not plans:
            return []
        times = self.run_draws(plans, slice(0, 1 + draws), scopes)
        nominal = _gain(self.step.time, times[:, 0])
        if not draws:
            return [Figure(float(gain), "%") for gain in nominal]
        gains = _gain(self.times[:draws], times[:, 1:])
        return [_figure(float(gain), band, "%") for gain, band in zip(nominal, gains, strict=True)]


def forecast(
    workload: Workload,
    copies: Sequence[Copy],
    machine: Machine,
    draws: int = 256,
    seed: int = 0,
    baseline: Baseline | None = None,
) -> Forecast:
    """Forecast one plan; pass the same `Baseline` for further plans of one workload, which then decides the draws."""
    return (baseline or Baseline(workload, machine, draws, seed)).forecast(copies)


def evaluate_many(
    workload: Workload,
    plans: Sequence[Sequence[Copy]],
    machine: Machine,
    draws: int = 0,
    seed: int = 0,
    baseline: Baseline | None = None,
) -> list[Figure]:
    """Gains of many plans in per cent, in their order; with a band if `draws` is above 0."""
    return (baseline or Baseline(workload, machine, draws, seed)).evaluate_many(plans, draws)


def _gain(baseline: np.ndarray | float, optimised: np.ndarray | float) -> np.ndarray:
    """Per cent of the baseline, positive is faster; 0 for an empty step."""
    before = np.asarray(baseline, float)
    return 100.0 * (before - optimised) / np.where(before > 0.0, before, 1.0)


def _figure(value: float, draws: np.ndarray, unit: str) -> Figure:
    """A nominal value with its band, which holds the value too: the nominal assignment is a possible one.

    The median of the draws may lie far from it, where the low case of a mechanism costs much and its high case is the
    nominal one.
    """
    if not len(draws):
        return Figure(value, unit)
    low, high = np.quantile(draws, BAND)
    return Figure(value, unit, min(value, float(low)), max(value, float(high)))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
