"""The unknowns of the machine model: their names, units and meaning, and one assignment of values to all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

# Units that a configuration may use -> factor to microseconds, bytes and operations.
UNITS: dict[str, dict[str, float]] = {
    "time": {"us": 1.0, "ns": 1e-3, "ms": 1e3},
    "bandwidth": {"bytes/us": 1.0, "GB/s": 1e3, "TB/s": 1e6},
    "peak": {"TFLOPS": 1e6, "TOPS": 1e6},
    "bytes": {"bytes": 1.0, "MiB": float(1 << 20)},
    "share": {"share": 1.0},
    "choice": {"choice": 1.0},
    "level": {"level": 1.0},
}


@dataclass(frozen=True)
class Meaning:
    """What an unknown is: its dimension (key of `UNITS`) and one sentence."""

    dimension: str
    text: str


UNKNOWNS: dict[str, Meaning] = {
    "hbm_share": Meaning("share", "share of the HBM peak that streaming kernels reach"),
    "core_bandwidth": Meaning("bandwidth", "HBM bandwidth that one AIC core can draw"),
    "l2_bandwidth": Meaning("bandwidth", "L2 bandwidth of all cores together; scales with the cores of a kernel"),
    "l2_share": Meaning("share", "share of L2 that holds weights"),
    "cmo_bandwidth": Meaning("bandwidth", "bandwidth of the copy (CMO) engine"),
    "cmo_task": Meaning("time", "time of one prefetch task before its first byte"),
    "issue": Meaning("time", "time that launching one prefetch costs its stream in graph mode"),
    "issue_eager": Meaning("time", "the same in eager mode, where the host dispatches it"),
    "gap": Meaning("time", "time between two kernels of a stream in a static graph"),
    "launch": Meaning("time", "part of a kernel's fixed time that it loses inside a SuperKernel"),
    "fused_gap": Meaning("time", "time between two kernels of one SuperKernel, synchronisation included"),
    "fusion": Meaning("choice", "kernels that fuse only in some versions or settings: 0 cut a SuperKernel, 1 fuse"),
    "link_bandwidth": Meaning("bandwidth", "bandwidth at which one die sends in a collective"),
    "rank_latency": Meaning("time", "what every further rank of a collective adds to its fixed time"),
    "peak_bf16": Meaning("peak", "BF16 peak of all AIC cores"),
    "peak_int8": Meaning("peak", "INT8 peak of all AIC cores"),
    "peak_fp32": Meaning("peak", "FP32 peak of all AIC cores"),
    "peak_vector": Meaning("peak", "peak of all AIV cores"),
    "late_bytes": Meaning(
        "choice",
        "bytes that a copy brings while its target runs: 0 are wasted, 1 help with the chance that they have not been "
        "read yet, 2 all help and what the target has read is not copied",
    ),
    "cold_slices": Meaning(
        "choice", "a weight of which only a prefix is resident: 0 the cores with cold slices limit it, 1 in proportion"
    ),
    "self_eviction": Meaning(
        "choice",
        "when part of a copy has left L2 before its target runs, the target's misses push out: 0 the rest, 1 as much "
        "again, 2 nothing",
    ),
    "serial_hits": Meaning("choice", "a kernel reads its L2 hits: 0 before its misses, 1 beside them"),
    "hbm_sharing": Meaning(
        "choice",
        "how kernels and the copy share HBM where it is short: 0 equally, 1 in proportion to the bandwidth of their "
        "cores and of the copy engine, 2 by cores, where the copy counts as one core",
    ),
    "routing": Meaning("level", "share of an expert stack that is read, from low (-1) to high (1)"),
    "first_experts": Meaning("level", "the same for the experts in a prefetched prefix"),
}

ENGINES = ("cube", "vector", "mix", "communication")


@dataclass(frozen=True)
class Parameters:
    """One value for every figure and unknown of a machine, in us, bytes and operations.

    Attributes:
        cores: AIC cores of the die.
        hbm_peak: bytes/us.
        l2_bytes: bytes.
        values: name of the unknown -> value.
        fixed: operator or engine class -> fixed time of a kernel, us.
    """

    cores: int
    hbm_peak: float
    l2_bytes: float
    values: Mapping[str, float]
    fixed: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def fixed_us(self, op: str, engine: str) -> float:
        """Fixed time of a kernel: the operator's own if there is one, else its engine's; idle time has none."""
        if op in self.fixed:
            return self.fixed[op]
        return 0.0 if engine == "idle" else self.fixed[engine]

    def with_values(self, **values: float) -> "Parameters":
        """The same with some unknowns replaced.

        Raises:
            KeyError: there is no such unknown.
        """
        for name in values:
            if name not in UNKNOWNS:
                raise KeyError(name)
        return replace(self, values={**self.values, **values})
