"""The median step of a profile as plain arrays: what mapping and replay need of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.analysis.operators import Kind, operator_table
from pipeline.analysis.sequence import critical_path

if TYPE_CHECKING:
    from pipeline.analysis.results import PhaseAnalysis
    from pipeline.profile.rows import Profile
    from pipeline.simulator.machine import Machine


@dataclass(frozen=True)
class Step:
    """Kernels of one step in order of their starts. Times in us from the start of the step.

    Starts are those of one real step, so that what waits for what can be seen: medians of starts need not fit to
    medians of durations.

    Attributes:
        rows: [n] index in `Profile.kernels`.
        op_types: as the profile writes them.
        kinds: of the operators.
        streams: [n] number of the stream, an index into `stream_names`.
        stream_names: as in the profile.
        start_us, end_us: [n] in the representative step.
        duration_us: [n] medians over the steps.
        before: [n] the kernel that each follows: the one before it on its stream, or the one of another stream that it
            waited for; -1 if none.
        weight_bytes: [n] bytes of its weights as stored, by the shapes; 0 none, -1 not known.
        read_bytes: [n, 3] bytes of the weights that it reads, low, nominal, high.
        other_bytes: [n] bytes of activations; of a kernel whose bytes the shapes do not tell, all that it may draw
            (`Sequence.demand`), so that a copy beside it does not get bandwidth that may be taken.
        flops: [n].
        cores: [n] blocks that it ran on, 0 if not known.
        compute: which peak applies, `bf16`, `int8` or `fp32`.
        step_us: measured time of the step, median.
    """

    rows: np.ndarray
    op_types: tuple[str, ...]
    kinds: tuple[Kind, ...]
    streams: np.ndarray
    stream_names: tuple[str, ...]
    start_us: np.ndarray
    end_us: np.ndarray
    duration_us: np.ndarray
    before: np.ndarray
    weight_bytes: np.ndarray
    read_bytes: np.ndarray
    other_bytes: np.ndarray
    flops: np.ndarray
    cores: np.ndarray
    compute: tuple[str, ...]
    step_us: float

    def __len__(self) -> int:
        return len(self.op_types)

    def at_row(self, row: int) -> int | None:
        """Position of a row of the profile, None if it is not in this step."""
        found = np.flatnonzero(self.rows == row)
        return int(found[0]) if len(found) else None

    @classmethod
    def of(cls, profile: "Profile", phase: "PhaseAnalysis", machine: "Machine") -> "Step":
        """The arrays of an analysed phase.

        Args:
            profile: the kernels.
            phase: of its analysis.
            machine: as configured.
        """
        found = phase.sequence
        rows = found.frame["row"].to_numpy().astype(np.int64)
        begin = profile.kernels["start_us"].to_numpy()[rows]
        order = np.lexsort((rows, begin))
        start = begin[order] - begin.min()
        end = start + profile.kernels["duration_us"].to_numpy()[rows[order]]
        streams = found.stream[order]
        known = found.frame["known"].to_numpy()
        read = np.stack([found.column(f"read{end}") for end in ("_low", "", "_high")], axis=1)
        types, compute = found.frame["op_type"].to_list(), found.frame["compute"].to_list()
        blocks = profile.kernels["block_dim"].fill_null(0).to_numpy()[rows]
        return cls(
            rows=rows[order],
            op_types=tuple(str(types[k] or "") for k in order),
            kinds=tuple(found.kinds[k] for k in order),
            streams=streams,
            stream_names=found.names,
            start_us=start,
            end_us=end,
            duration_us=found.length[order],
            before=critical_path(start, end, streams, operator_table().limits.waits)[0],
            weight_bytes=np.where(known, found.column("weight_bytes"), -1.0)[order],
            read_bytes=read[order],
            other_bytes=np.where(known, found.column("other_bytes"), found.demand(machine).nominal)[order],
            flops=found.column("flops")[order],
            cores=blocks[order],
            compute=tuple(str(compute[k] or "bf16") for k in order),
            step_us=phase.step.value,
        )
