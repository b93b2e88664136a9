"""A profile laid over a model and replayed: the workload with measured times, and how well the replay fits."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from models.problems import Problem, RefusedError
from models.workload import Workload
from pipeline.analysis.operators import operator_table
from pipeline.figures import Figure
from pipeline.mapping.placed import MATMULS, Mapping, place
from pipeline.mapping.step import Step
from pipeline.replay.calibration import Calibrated, calibrate
from pipeline.replay.contention import without_contention
from pipeline.replay.timed import Replay, profile_workload, replayed
from pipeline.simulator.machine import Machine
from pipeline.simulator.simulate import simulate

if TYPE_CHECKING:
    from pipeline.analysis.results import PhaseAnalysis
    from pipeline.profile.rows import Profile

OTHER_ROWS = 0.05  # relative difference in rows from which on it is told
FAR_OFF = 5.0  # % between replayed and measured step from which on it is told


@dataclass(frozen=True)
class Measured:
    """A measured step, ready for forecasts.

    Attributes:
        step: of the profile.
        mapping: of the step on the model; None without a model.
        workload: kernels with the times that they take alone.
        of: position in the step -> index in the workload.
        machine: calibrated.
        calibration: what the profile says about the machine.
        measured, replayed: time of the step, us; the replay is that of the baseline at nominal values.
        idle_us: waits that no kernel explains.
        shared_us: time that kernels lose to each other, in sum.
        not_run: kernels of the model that the profile does not have.
        rows: tokens of the profile's MatMuls over those of the model's; None if that is not known.
        remarks: warnings of who read the profile.
    """

    step: Step
    mapping: Mapping | None
    workload: Workload
    of: dict[int, int]
    machine: Machine
    calibration: tuple[Calibrated, ...]
    measured: Figure
    replayed: Figure
    idle_us: float
    shared_us: float
    not_run: tuple[int, ...]
    rows: float | None = None
    remarks: tuple[Problem, ...] = ()

    @property
    def off(self) -> float:
        """Replayed less measured step, % of measured."""
        return 100.0 * (self.replayed.value - self.measured.value) / self.measured.value if self.measured.value else 0.0

    def on_workload(self) -> Mapping:
        """The mapping with the indices of `workload`."""
        assert self.mapping is not None
        placed = tuple(replace(p, kernel=self.of[p.at]) for p in self.mapping.placed)
        return replace(self.mapping, placed=placed, missing=self.not_run)

    def module_at(self, row: int) -> str:
        """The module that launched the kernel at a row of the profile, "" if it was not placed."""
        at = self.step.at_row(row)
        return self.workload.kernels[self.of[at]].module if at in self.of else ""

    def problems(self) -> list[Problem]:
        """What to know before a forecast is believed."""
        found = list(self.remarks)
        if abs(self.off) > FAR_OFF:
            message = (
                f"the replayed baseline takes {self.replayed.value:.1f} us, {self.off:+.1f} % of the "
                f"{self.measured.value:.1f} us that were measured"
            )
            fix = "Forecasts in per cent refer to the replayed step."
            found.append(Problem("warning", "replay-off", message, fix, "profile"))
        if self.mapping is not None and (self.mapping.missing or self.mapping.unplaced):
            total = len(self.mapping.placed) + len(self.mapping.unplaced)
            message = (
                f"{len(self.mapping.placed)} of {total} kernels of the profile's step were found in the model; "
                f"{len(self.mapping.missing)} kernels of the model are not in the profile"
            )
            fix = "Is deployment= the one that was profiled? Fused and split kernels are normal in small numbers."
            found.append(Problem("warning", "mapping-partial", message, fix, "profile"))
        if self.rows is not None and abs(self.rows - 1.0) > OTHER_ROWS:
            message = (
                f"the profile's MatMuls have {self.rows:.3g} times the rows of the model's: another batch size or "
                "number of speculative tokens was profiled"
            )
            fix = "Set deployment.batch_size= and deployment.next_n= to what was profiled."
            found.append(Problem("warning", "another-batch", message, fix, "deployment.batch_size"))
        return found

    def to_json(self) -> dict[str, Any]:
        placed: dict[str, int] = {}
        for p in self.mapping.placed if self.mapping else ():
            placed[p.sure] = placed.get(p.sure, 0) + 1
        mapping = None
        if self.mapping is not None:
            mapping = {
                "placed": placed,
                "unplaced": [
                    {"row": int(self.step.rows[a]), "op_type": self.step.op_types[a]} for a in self.mapping.unplaced
                ],
                "missing": [self.workload.kernels[k].op for k in self.not_run],
            }
        return {
            "measured": self.measured.to_json(),
            "replayed": self.replayed.to_json(),
            "off": self.off,
            "idle_us": self.idle_us,
            "contention_us": self.shared_us,
            "mapping": mapping,
            "calibration": [
                {"name": c.name, **c.figure.to_json(), "samples": c.samples, "used": c.used, "note": c.note}
                for c in self.calibration
            ],
        }


def measure(profile: "Profile", phase: "PhaseAnalysis", machine: Machine, workload: Workload | None = None) -> Measured:
    """Lay a profile's step over a model, or take it by itself.

    Args:
        profile: the kernels.
        phase: the analysed decode step.
        machine: as configured, for the execution mode.
        workload: traced step of the model that was profiled; None: kernels have no names.

    Raises:
        RefusedError: the profile is of another model or deployment, or too long to be aligned.
    """
    step = Step.of(profile, phase, machine)
    tuned, calibration = calibrate(step, machine)
    gap = tuned.nominal()["gap"]
    mapping = None
    if workload is None:
        found: Replay = profile_workload(step, gap)
    else:
        try:
            mapping = place(step, workload, operator_table())
        except ValueError as error:
            message = f"the step can't be mapped to the model: {error}"
            raise RefusedError(
                [Problem("error", "step-too-long", message, "", "profile", str(profile.source))]
            ) from None
        if mapping.poor:
            raise RefusedError([_another_model(profile, mapping, workload)])
        found = replayed(workload, step, mapping, gap)
    settled = without_contention(found.workload, tuned)
    time = simulate(settled.workload, [], tuned.nominal()).time
    return Measured(
        step,
        mapping,
        settled.workload,
        dict(found.of),
        tuned,
        calibration,
        Figure(step.step_us, "us", phase.step.low, phase.step.high, "measured"),
        Figure(time, "us"),
        found.idle_us,
        settled.shared_us,
        found.not_run,
        None if mapping is None or workload is None else _rows(step, mapping, workload),
    )


def _rows(step: Step, mapping: Mapping, workload: Workload) -> float | None:
    """Operations of the profile's MatMuls over those of the model's: their weights are equal, so rows differ."""
    plain = [p for p in mapping.placed if step.kinds[p.at].name in (*MATMULS, "quant_matmul")]
    pairs = [(step.flops[p.at], workload.kernels[p.kernel].flops) for p in plain]
    ratios = [shown / traced for shown, traced in pairs if shown > 0 and traced > 0]
    return float(np.median(ratios)) if ratios else None


def _another_model(profile: "Profile", mapping: Mapping, workload: Workload) -> Problem:
    total = len(mapping.placed) + len(mapping.unplaced)
    message = (
        f"only {len(mapping.placed)} kernels are in both, of {total} of the profile's step and {len(workload.kernels)} "
        f"of the model's; {mapping.weights} of {mapping.weighty} weights have a partner of their size: the profile "
        "seems to be of another model or deployment"
    )
    fix = "Set model= and deployment= (parallel sizes, quantisation, layers) to what was profiled."
    return Problem("error", "profile-of-another-model", message, fix, "profile", str(profile.source))
