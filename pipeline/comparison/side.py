"""One of the two profiles: its step, and the times of every kernel in every step."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.analysis.sequence import Sequence

if TYPE_CHECKING:
    from pipeline.analysis.results import Analysis, PhaseAnalysis
    from pipeline.profile.rows import Profile


@dataclass(frozen=True, eq=False)
class Side:
    """A profile as the comparison sees it. Times in us, [S] steps, [n] kernels of a step in order of their starts.

    Attributes:
        path: as the user named it.
        profile, phase: what was read, and the analysis of its steps.
        start, duration: [S, n] of every kernel in every step behind the medians; starts from the begin of the step.
    """

    path: Path
    profile: "Profile"
    phase: "PhaseAnalysis"
    start: np.ndarray
    duration: np.ndarray

    @classmethod
    def of(cls, path: Path, profile: "Profile", analysis: "Analysis", phase: "PhaseAnalysis") -> "Side":
        """Collect the steps of a phase; the analysis kept those that have the same kernels in the same order."""
        import polars as pl

        mine = analysis.every_step.filter(pl.col("step").is_in(list(phase.numbers))).sort("step", "slot")
        shape = (len(phase.numbers), len(phase.sequence))
        start = mine["start_us"].to_numpy().reshape(shape)
        duration = mine["duration_us"].to_numpy().reshape(shape)
        # Kernels of the sequence are in order of start, those of a step in order of slot.
        order = np.argsort(np.argsort(phase.sequence.frame["slot"].to_numpy(), kind="stable"), kind="stable")
        start, duration = start[:, order], duration[:, order]
        return cls(path, profile, phase, start - start.min(axis=1, keepdims=True), duration)

    def __len__(self) -> int:
        return self.duration.shape[1]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.duration.shape[0]

    @property
    def sequence(self) -> Sequence:
        """The kernels of the median step."""
        return self.phase.sequence

    @cached_property
    def end(self) -> np.ndarray:
        """[S, n] end of every kernel."""
        return self.start + self.duration

    @cached_property
    def step(self) -> np.ndarray:
        """[S] from the first start to the last end of a step."""
        return self.end.max(axis=1)

    @cached_property
    def names(self) -> list[str]:
        """Name of each kernel."""
        return [name or "" for name in self.sequence.frame["name"].to_list()]

    def busy(self, chosen: np.ndarray | None = None) -> np.ndarray:
        """[S] time in which at least one of the kernels runs: union of intervals.

        Args:
            chosen: positions of the kernels; all of them if None.
        """
        start = self.start if chosen is None else self.start[:, chosen]
        end = self.end if chosen is None else self.end[:, chosen]
        order = np.argsort(start, axis=1, kind="stable")
        start, end = np.take_along_axis(start, order, 1), np.take_along_axis(end, order, 1)
        covered = np.maximum.accumulate(end, axis=1)
        before = np.concatenate([np.full((len(end), 1), -np.inf), covered[:, :-1]], axis=1)
        return np.maximum(end - np.maximum(start, before), 0.0).sum(axis=1)

    def total(self, chosen: "np.ndarray | list[int]") -> np.ndarray:
        """[S] summed time of some kernels."""
        return self.duration[:, chosen].sum(axis=1)
