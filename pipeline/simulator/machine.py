"""A machine model: exact figures, and unknowns with a band and a source each, as in `conf/hardware/*.yaml`."""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from models.problems import Problem, hint, raise_errors
from pipeline.simulator.parameters import ENGINES, UNITS, UNKNOWNS, Parameters

GENERATIONS = ("a2", "a3", "950")
_FIGURES = {"cores": "count", "vector_cores": "count", "hbm_peak": "bandwidth", "l2_bytes": "bytes"}
_KEYS = ("name", "description", "generation", *_FIGURES, "sources", "unknowns", "fixed")
_LIMITS = {
    "late_bytes": (0, 2),
    "cold_slices": (0, 1),
    "self_eviction": (0, 2),
    "serial_hits": (0, 1),
    "fusion": (0, 1),
    "hbm_sharing": (0, 2),
}
# Levels of a `choice` are taken in these shares: the middle one as often as both ends together.
_CHOICES = (0.25, 0.75)


@dataclass(frozen=True)
class Unknown:
    """A figure that is not known well: a band, and where it comes from.

    Attributes:
        low, nominal, high: in microseconds, bytes and operations; low <= nominal <= high.
        unit: the unit in which the configuration states it.
        source: public source, or the word assumption and why.
        dimension: key of `UNITS`.
    """

    low: float
    nominal: float
    high: float
    unit: str
    source: str
    dimension: str = "time"

    def at(self, quantile: np.ndarray) -> np.ndarray:
        """Values at quantiles 0 .. 1: linear from low over nominal (the median) to high; choices are one of them."""
        if self.dimension == "choice":
            return np.where(quantile < _CHOICES[0], self.low, np.where(quantile < _CHOICES[1], self.nominal, self.high))
        return np.interp(quantile, [0.0, 0.5, 1.0], [self.low, self.nominal, self.high])


@dataclass(frozen=True, eq=False)
class Machine:
    """One die of a machine.

    Attributes:
        name: the config group's option.
        generation: `a2`, `a3` or `950`.
        cores, vector_cores: AIC and AIV cores.
        hbm_peak: bytes/us.
        l2_bytes: bytes.
        unknowns: name -> band (names of `parameters.UNKNOWNS`).
        fixed: engine class or operator -> fixed time of a kernel.
        sources: exact figure -> source.
        warnings: what the configuration should be told, without refusing it.
    """

    name: str
    generation: str
    cores: int
    vector_cores: int
    hbm_peak: float
    l2_bytes: float
    unknowns: Mapping[str, Unknown]
    fixed: Mapping[str, Unknown]
    sources: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    warnings: tuple[Problem, ...] = ()

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], file: str | None = None) -> "Machine":
        """Check and read a machine as configured.

        Args:
            mapping: the composed `hardware` group.
            file: the group's file, for messages.

        Raises:
            RefusedError: with every problem found.
        """
        check = _Check(file)
        check.unknown_keys(mapping, _KEYS, "")
        sources = {str(k): str(v) for k, v in check.mapping(mapping, "sources").items()}
        figures = {name: check.figure(mapping, name, sources) for name in _FIGURES}
        generation = str(mapping.get("generation", "")).lower()
        if generation not in GENERATIONS:
            check.error("generation", "bad-value", f"generation {generation!r} is not one of {', '.join(GENERATIONS)}")
        declared = check.mapping(mapping, "unknowns")
        check.unknown_keys(declared, UNKNOWNS, "unknowns.")
        unknowns = {
            name: check.band(f"unknowns.{name}", declared.get(name), meaning.dimension, meaning.text)
            for name, meaning in UNKNOWNS.items()
        }
        times = check.mapping(mapping, "fixed")
        fixed = {
            str(name): check.band(f"fixed.{name}", times.get(name), "time", f"fixed time of {name} kernels")
            for name in dict.fromkeys((*ENGINES, *times))
        }
        raise_errors(check.problems)
        return cls(
            name=str(mapping.get("name", "")),
            description=str(mapping.get("description", "")),
            generation=generation,
            cores=int(figures["cores"]),
            vector_cores=int(figures["vector_cores"]),
            hbm_peak=figures["hbm_peak"],
            l2_bytes=figures["l2_bytes"],
            unknowns={k: v for k, v in unknowns.items() if v is not None},
            fixed={k: v for k, v in fixed.items() if v is not None},
            sources=sources,
            warnings=tuple(check.problems),
        )

    def for_mode(self, exe_mode: str) -> "Machine":
        """The machine as an execution mode sees it: in `eager` the host dispatches each prefetch."""
        if exe_mode != "eager":
            return self
        return replace(self, unknowns={**self.unknowns, "issue": self.unknowns["issue_eager"]})

    def at(self, end: Literal["low", "nominal", "high"]) -> Parameters:
        """All unknowns at one end of their bands."""
        return self._assign(lambda unknown, name: float(getattr(unknown, end)))

    def nominal(self) -> Parameters:
        """All unknowns at their nominal value."""
        return self.at("nominal")

    def draws(self, n: int, seed: int = 0) -> list[Parameters]:
        """`n` assignments of all unknowns together.

        Each unknown is drawn by itself, one value from each of `n` equal parts of its distribution (Latin hypercube),
        from a stream that depends on the seed and the unknown's name only: declaring one more unknown leaves the
        others as they are.
        """
        values = {name: _draw(unknown, f"unknowns.{name}", n, seed) for name, unknown in self.unknowns.items()}
        fixed = {name: _draw(unknown, f"fixed.{name}", n, seed) for name, unknown in self.fixed.items()}
        return [
            Parameters(
                self.cores,
                self.hbm_peak,
                self.l2_bytes,
                {name: float(column[i]) for name, column in values.items()},
                {name: float(column[i]) for name, column in fixed.items()},
            )
            for i in range(n)
        ]

    def _assign(self, value: Callable[[Unknown, str], float]) -> Parameters:
        return Parameters(
            self.cores,
            self.hbm_peak,
            self.l2_bytes,
            {name: value(unknown, name) for name, unknown in self.unknowns.items()},
            {name: value(unknown, name) for name, unknown in self.fixed.items()},
        )


def load_machine(name: str, **figures: Any) -> Machine:
    """A committed machine by its option's name, outside a composed configuration.

    Args:
        name: file below `conf/hardware`, e.g. `atlas_a3`.
        figures: top-level keys to replace, e.g. `l2_bytes`.

    Raises:
        RefusedError: the machine needs a figure that was not given.
        FileNotFoundError: there is no such machine.
    """
    from ruamel.yaml import YAML

    file = Path(__file__).parents[2] / "conf" / "hardware" / f"{name}.yaml"
    return Machine.from_mapping({**YAML(typ="safe").load(file), **figures}, f"conf/hardware/{file.name}")


def _draw(unknown: Unknown, name: str, n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return unknown.at((rng.permutation(n) + rng.random(n)) / max(n, 1))


class _Check:
    """Reads parts of the mapping and collects what is wrong with them."""

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def error(self, key: str, code: str, message: str, fix: str = "") -> None:
        key = f"hardware.{key}" if key else "hardware"
        self.problems.append(Problem("error", code, message, fix, key, self.file))

    def unknown_keys(self, mapping: Mapping[str, Any], known: Iterable[str], prefix: str) -> None:
        names = list(known)
        for key in mapping:
            if key not in names:
                fix = hint(str(key), names).strip()
                self.error(f"{prefix}{key}", "unknown-key", f"unknown key; known are {', '.join(names)}", fix)

    def mapping(self, mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = mapping.get(key)
        if value is None or isinstance(value, Mapping):
            return value or {}
        self.error(key, "bad-type", f"must be a mapping, not {value!r}")
        return {}

    def figure(self, mapping: Mapping[str, Any], name: str, sources: Mapping[str, str]) -> float:
        """An exact figure: a number in us and bytes."""
        value = mapping.get(name)
        if value is None and name == "l2_bytes":
            self.error(
                name,
                "missing-figure",
                f"the L2 size of {mapping.get('name', 'this machine')} is not public; no plan can be judged without it",
                "Give it in bytes, for example `hardware.l2_bytes=134217728` for 128 MiB.",
            )
        elif value is None:
            self.error(name, "missing-key", "is missing")
        elif isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
            self.error(name, "bad-value", f"must be a number above 0 in {_unit_of(name)}, not {value!r}")
        elif _FIGURES[name] == "count" and not float(value).is_integer():
            self.error(name, "bad-value", f"must be a whole number, not {value!r}")
        else:
            if name not in sources:
                self.error(
                    f"sources.{name}", "missing-source", f"{name} has no source", "Say where the figure is from."
                )
            return float(value)
        return 1.0

    def band(self, key: str, value: Any, dimension: str, text: str) -> Unknown | None:
        """A low / nominal / high figure with unit and source."""
        if value is None:
            self.error(key, "missing-key", f"is missing ({text})")
            return None
        if not isinstance(value, Mapping):
            self.error(key, "bad-type", f"must be a mapping of low, nominal, high, unit and source, not {value!r}")
            return None
        before = len(self.problems)
        self.unknown_keys(value, ("low", "nominal", "high", "unit", "source"), f"{key}.")
        unit = str(value.get("unit", ""))
        if unit not in UNITS[dimension]:
            self.error(f"{key}.unit", "bad-unit", f"unit {unit!r} is not one of {', '.join(UNITS[dimension])}")
        if not value.get("source"):
            self.error(f"{key}.source", "missing-source", "has no source", "Name it, or say that it is an assumption.")
        ends = [value.get(end) for end in ("low", "nominal", "high")]
        if any(isinstance(end, bool) or not isinstance(end, Real) or float(end) != float(end) for end in ends):
            self.error(key, "bad-value", f"low, nominal and high must be numbers, not {ends}")
            return None
        low, nominal, high = (float(end) for end in ends if end is not None)
        if not low <= nominal <= high:
            self.error(key, "bad-band", f"must be low <= nominal <= high, not {low:g}, {nominal:g}, {high:g}")
        bottom, top = _range(key.rpartition(".")[2], dimension)
        if low < bottom or high > top or (low == 0.0 and dimension in ("bandwidth", "peak", "share")):
            self.error(key, "bad-range", f"must be between {bottom:g} and {top:g}, bandwidths and shares above 0")
        if dimension == "choice" and any(end != int(end) for end in (low, nominal, high)):
            self.error(key, "bad-value", f"must be whole numbers: {text}")
        if len(self.problems) > before:
            return None
        factor = UNITS[dimension][unit]
        return Unknown(low * factor, nominal * factor, high * factor, unit, str(value["source"]), dimension)


def _range(name: str, dimension: str) -> tuple[float, float]:
    if name in _LIMITS:
        return _LIMITS[name]
    return {"share": (0.0, 1.0), "level": (-1.0, 1.0)}.get(dimension, (0.0, float("inf")))


def _unit_of(name: str) -> str:
    return {"count": "cores", "bandwidth": "bytes/us", "bytes": "bytes"}[_FIGURES[name]]
