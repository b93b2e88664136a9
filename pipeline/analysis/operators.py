"""The operator tables of the specification, read from `conf/operators.yaml`: kinds of kernels, and limits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal

from pipeline.config_files import CONF

FILE = CONF / "operators.yaml"

Traffic = Literal["matmul", "grouped", "mla_prolog", "attention", "gather", "in_place", "convolution", "all", "unknown"]
Intensive = Literal["always", "never", "memory_bound", "large_move"]


@dataclass(frozen=True)
class Kind:
    """What is known about one kind of operator.

    Attributes:
        name: e.g. `quant_matmul`.
        names: patterns of operator types, lower case.
        traffic: how bytes and FLOPs follow from shapes.
        engine: `cube`, `vector`, `mix` or `communication`.
        intensive: when the kernel takes the HBM bandwidth for itself.
        flagged: a copy may run beside it, but that is told, and the low case counts none of its time.
        dependency: whether its output may release a prefetch.
        target: whether its weight is worth a prefetch.
        priority: `high` or `low`.
        row: the row of the specification's table, language -> text.
    """

    name: str
    names: tuple[str, ...]
    traffic: Traffic
    engine: str
    intensive: Intensive
    flagged: bool
    dependency: bool
    target: bool
    priority: str
    row: Mapping[str, str]


@dataclass(frozen=True)
class Limits:
    """Thresholds; `conf/operators.yaml` says why. Times in us, sizes in bytes, shares from 0 to 1."""

    decode_rows: float
    small_weight: float
    large_move: float
    short: float
    busy_share: float
    ideal_share: float
    saturated: float
    enough: float
    smallest_prefetch: float
    hops: float
    waits: float
    scope_idle: float
    scope_share: float


@dataclass(frozen=True)
class OperatorTable:
    """All kinds, the words that tell the phases apart, and the limits."""

    kinds: Mapping[str, Kind]
    phases: Mapping[str, tuple[str, ...]]
    limits: Limits

    def kind(self, op_type: str | None, core: str | None = None) -> Kind:
        """The kind of an operator type as a profile writes it; a kernel of the link is communication by its core."""
        if core in ("HCCL", "COMMUNICATION"):
            return self.kinds["communication"]
        return self.kinds[_kind_name(self, op_type or "")]

    def phase_word(self, op_type: str | None) -> str:
        """`training`, `decode` or `prefill` if only that phase has such a kernel, else ""."""
        name = (op_type or "").lower()
        for phase, words in self.phases.items():
            if any(word.lower() in name for word in words):
                return phase
        return ""


@cache
def plain_name(op_type: str) -> str:
    """`MatMulV3` is `matmul`, `hcom_allReduce__123_0` is `hcom_allreduce`: lower case, no version, no instance."""
    return re.sub(r"(?:_+\d+)+$|_+$|v\d+$", "", op_type.strip().lower().rstrip("_"))


@cache
def operator_table() -> OperatorTable:
    """The committed table.

    Raises:
        KeyError, TypeError: the file was edited and lacks something; tests hold it.
    """
    import yaml  # with its C parser a hundred times faster than ruamel, and no comments are needed

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data: dict[str, Any] = yaml.load(FILE.read_text(encoding="utf-8"), Loader=loader)
    kinds = {name: _kind(name, entry) for name, entry in data["kinds"].items()}
    phases = {name: tuple(words) for name, words in data["phases"].items()}
    limits = Limits(**{name: float(entry["value"]) for name, entry in data["limits"].items()})
    return OperatorTable(kinds, phases, limits)


def _kind(name: str, entry: Mapping[str, Any]) -> Kind:
    return Kind(
        name=name,
        names=tuple(str(pattern).lower() for pattern in entry["names"]),
        traffic=entry["traffic"],
        engine=entry["engine"],
        intensive=entry["intensive"],
        flagged=entry["window"] == "flagged",
        dependency=bool(entry["dependency"]),
        target=bool(entry["target"]),
        priority=entry["priority"],
        row=entry["row"],
    )


def _kind_name(table: OperatorTable, op_type: str) -> str:
    full, plain = op_type.strip().lower(), plain_name(op_type)
    for name, kind in table.kinds.items():
        if any(fnmatchcase(plain, pattern) or fnmatchcase(full, pattern) for pattern in kind.names):
            return name
    return "other"
