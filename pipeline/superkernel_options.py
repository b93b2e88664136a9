"""The options of a SuperKernel scope: their types, and the text that the compiler gets."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.problems import did_you_mean
from pipeline.reporter import Reporter

Options = tuple[tuple[str, str], ...]

# (AIC, AIV) cores per SuperKernel may only stand in these ratios.
RATIOS = ((1, 0), (0, 1), (1, 1), (1, 2))
CORE_NUMBERS = ("debug-aic-num", "debug-aiv-num")

_OP_TYPE = re.compile(r"[A-Za-z_]\w*\Z")


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        kind: what its value is, in words.
        read: value -> text; raises ValueError if it is none.
        meaning: what it does, in one sentence.
    """

    kind: str
    read: Callable[[Any], str]
    meaning: str


def _flag(value: Any) -> str:
    if value in (True, False) or (isinstance(value, str) and value in ("0", "1")):
        return str(int(value))
    raise ValueError


def _one_of(*names: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if isinstance(value, str) and value in names:
            return value
        raise ValueError

    return read


def _op_types(value: Any) -> str:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise ValueError
    if not all(isinstance(n, str) and _OP_TYPE.match(n.strip()) for n in names):
        raise ValueError
    return ",".join(n.strip() for n in names)


def _cores(value: Any) -> str:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return str(value)


OPTIONS: Mapping[str, Option] = {
    "feed-sync-all": Option("0 or 1", _flag, "cures a hang when a kernel with SyncAll runs on fewer cores"),
    "stream-fusion": Option("0 or 1", _flag, "several streams may overlap: pure Cube beside pure Vector"),
    "strict-scope-check": Option("bypass or abort", _one_of("bypass", "abort"), "what if a kernel does not fuse"),
    "dcci-before-kernel-start": Option("a list of operator types", _op_types, "data cache is invalidated before these"),
    "dcci-after-kernel-end": Option("a list of operator types", _op_types, "data cache is invalidated after these"),
    "dcci-disable-on-kernel": Option("a list of operator types", _op_types, "no invalidation around these"),
    "debug-aic-num": Option("a number of cores", _cores, "AIC cores of the SuperKernel"),
    "debug-aiv-num": Option("a number of cores", _cores, "AIV cores of the SuperKernel"),
}


def read_options(report: Reporter, key: str, data: Any) -> Options:
    """Check a mapping of options.

    Args:
        report: where problems go.
        key: of the mapping, e.g. `recipe.superkernel.options`.
        data: the mapping; None is no option.

    Returns:
        (name, text) of those without an error, as written.
    """
    if data is None:
        return ()
    if not isinstance(data, Mapping):
        report.error(
            "bad-type",
            key,
            f"`options` is a mapping, not {data!r}",
            "Write {stream-fusion: 1}; `a=b` does not parse on the command line.",
        )
        return ()
    found: dict[str, str] = {}
    for name, value in data.items():
        option = OPTIONS.get(name)
        if option is None:
            fix = did_you_mean(str(name), OPTIONS)
            report.error("unknown-option", f"{key}.{name}", f"unknown SuperKernel option `{name}`", fix)
            continue
        try:
            found[str(name)] = option.read(value)
        except ValueError:
            report.error("out-of-range", f"{key}.{name}", f"option `{name}` is {option.kind}, not {value!r}")
    if all(name in found for name in CORE_NUMBERS if name in data):
        _check_ratio(report, key, found)
    return tuple(found.items())


def check_cores(report: Reporter, key: str, options: Options, there: tuple[int, int]) -> None:
    """Refuse more (AIC, AIV) cores than the machine has."""
    given = dict(options)
    for name, most in zip(CORE_NUMBERS, there, strict=True):
        if name in given and int(given[name]) > most:
            message = f"`{name}` is {given[name]}, but the machine has {most} such cores"
            report.error("out-of-range", f"{key}.{name}", message, f"Give at most {most}, or leave it out for all.")


def merged(base: Options, more: Options) -> Options:
    """`more` over `base`."""
    return tuple({**dict(base), **dict(more)}.items())


def as_text(options: Options) -> str:
    """As the compiler gets them, e.g. `stream-fusion=1:feed-sync-all=1`."""
    return ":".join(f"{name}={value}" for name, value in options)


def _check_ratio(report: Reporter, key: str, found: Mapping[str, str]) -> None:
    given = [name for name in CORE_NUMBERS if name in found]
    if not given:
        return
    ratios = ", ".join(f"{a}:{b}" for a, b in RATIOS)
    if len(given) == 1:
        other = next(name for name in CORE_NUMBERS if name not in found)
        report.error(
            "bad-core-ratio",
            f"{key}.{given[0]}",
            f"`{given[0]}` is given without `{other}`; AIC and AIV cores go together",
            f"Give both, in a ratio of {ratios}.",
        )
        return
    aic, aiv = (int(found[name]) for name in CORE_NUMBERS)
    if not any(aic * b == aiv * a and (aic + aiv) > 0 for a, b in RATIOS):
        report.error(
            "bad-core-ratio",
            f"{key}.{CORE_NUMBERS[1]}",
            f"{aic} AIC to {aiv} AIV cores is none of the ratios {ratios}",
            f"With {aic or aiv} AIC cores write 0, {aic or aiv} or {2 * (aic or aiv)} AIV cores, or 0 AIC cores."
            if aic or aiv
            else "Leave both out for all cores.",
        )
