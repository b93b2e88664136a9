"""The median step of a profile as plain arrays: what mapping and replay need of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.analysis.operators import Kind

if TYPE_CHECKING:
    from pipeline.analysis.sequence import Sequence


@dataclass(frozen=True)
class Step:
    """Kernels of one step in order of their starts. Times in us from the start of the step.

    Attributes:
        op_types: as the profile writes them.
        kinds: of the operators.
        streams: [n] number of the stream, an index into `stream_names`.
        stream_names: as in the profile.
        start_us, duration_us: [n] measured (medians over the steps).
        before: [n] the kernel that each follows: the one before it on its stream, or the one of another stream that it
            waited for; -1 if none.
        weight_bytes: [n] bytes of its weights as stored, by the shapes; 0 none, -1 not known.
        read_bytes: [n, 3] bytes of the weights that it reads, low, nominal, high.
        other_bytes: [n] bytes of activations.
        flops: [n].
        compute: which peak applies, `bf16`, `int8` or `fp32`.
        step_us: measured time of the step, median.
    """

    op_types: tuple[str, ...]
    kinds: tuple[Kind, ...]
    streams: np.ndarray
    stream_names: tuple[str, ...]
    start_us: np.ndarray
    duration_us: np.ndarray
    before: np.ndarray
    weight_bytes: np.ndarray
    read_bytes: np.ndarray
    other_bytes: np.ndarray
    flops: np.ndarray
    compute: tuple[str, ...]
    step_us: float

    def __len__(self) -> int:
        return len(self.op_types)

    @classmethod
    def of(cls, sequence: "Sequence", step_us: float) -> "Step":
        """The arrays of an analysed step.

        Args:
            sequence: of the median step.
            step_us: its measured time.
        """
        known = sequence.frame["known"].to_numpy()
        read = np.stack([sequence.column(f"read{end}") for end in ("_low", "", "_high")], axis=1)
        return cls(
            op_types=tuple(str(t or "") for t in sequence.frame["op_type"]),
            kinds=sequence.kinds,
            streams=sequence.stream,
            stream_names=sequence.names,
            start_us=sequence.start,
            duration_us=sequence.end - sequence.start,
            before=sequence.before,
            weight_bytes=np.where(known, sequence.column("weight_bytes"), -1.0),
            read_bytes=read,
            other_bytes=np.where(known, sequence.column("other_bytes"), 0.0),
            flops=sequence.column("flops"),
            compute=tuple(str(c or "bf16") for c in sequence.frame["compute"]),
            step_us=step_us,
        )
