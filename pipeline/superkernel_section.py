"""The recipe's `superkernel` section: keys, types and options. Scopes themselves come with a later version."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.reporter import Reporter, did_you_mean

SUPERKERNEL_KEYS = ("enabled", "strategy", "options", "allow", "scopes")
STRATEGIES = ("attention", "moe", "decoder_layers", "auto", "custom")
ALLOWABLE = ("npugraph_ex", "atlas_a2")

_FLAG = ("0", "1")
OPTIONS: dict[str, tuple[str, ...] | None] = {
    "feed-sync-all": _FLAG,
    "stream-fusion": _FLAG,
    "strict-scope-check": ("bypass", "abort"),
    "dcci-before-kernel-start": None,
    "dcci-after-kernel-end": None,
    "dcci-disable-on-kernel": None,
    "debug-aic-num": None,
    "debug-aiv-num": None,
}


@dataclass(frozen=True)
class SuperKernelSection:
    """`recipe.superkernel`.

    Attributes:
        enabled: whether scopes are asked for.
        strategy: which part of a layer a scope covers.
        options: (name, value) as written, in order.
        allow: preconditions that the recipe waives, e.g. `npugraph_ex`.
        scopes: as written, for strategy `custom`.
    """

    enabled: bool = False
    strategy: str = "attention"
    options: tuple[tuple[str, str], ...] = ()
    allow: tuple[str, ...] = ()
    scopes: Any = None


def parse_superkernel(report: Reporter, data: Any) -> SuperKernelSection:
    """Check the section; problems go to `report`."""
    key = "recipe.superkernel"
    if data is None:
        return SuperKernelSection()
    if not isinstance(data, Mapping):
        report.error("bad-type", key, f"`{key}` is a mapping of {', '.join(SUPERKERNEL_KEYS)}, not {data!r}")
        return SuperKernelSection()
    for name in data:
        if name not in SUPERKERNEL_KEYS:
            fix = did_you_mean(str(name), SUPERKERNEL_KEYS)
            report.error("unknown-key", f"{key}.{name}", f"unknown key `{name}` in `{key}`", fix)
    enabled = data.get("enabled", False)
    if not isinstance(enabled, bool):
        report.error("bad-type", f"{key}.enabled", f"`enabled` is true or false, not {enabled!r}")
        enabled = False
    if enabled:
        report.error(
            "not-yet",
            f"{key}.enabled",
            "SuperKernel scopes come with a later version of this tool",
            "Set recipe.superkernel.enabled=false.",
        )
    strategy = data.get("strategy", "attention")
    if strategy not in STRATEGIES:
        report.error(
            "unknown-strategy",
            f"{key}.strategy",
            f"unknown strategy {strategy!r}",
            did_you_mean(str(strategy), STRATEGIES),
        )
        strategy = "attention"
    scopes = data.get("scopes")
    if scopes is not None and not isinstance(scopes, Mapping):
        report.error("bad-type", f"{key}.scopes", f"`scopes` is a mapping from labels, not {scopes!r}")
    options = _options(report, f"{key}.options", data.get("options"))
    return SuperKernelSection(enabled, strategy, options, _allow(report, f"{key}.allow", data.get("allow")), scopes)


def _options(report: Reporter, key: str, data: Any) -> tuple[tuple[str, str], ...]:
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
    options = []
    for name, value in data.items():
        if name not in OPTIONS:
            report.error(
                "unknown-option",
                f"{key}.{name}",
                f"unknown SuperKernel option `{name}`",
                did_you_mean(str(name), OPTIONS),
            )
            continue
        text = _option_text(value)
        allowed = OPTIONS[name]
        if allowed is not None and text not in allowed:
            report.error(
                "out-of-range",
                f"{key}.{name}",
                f"option `{name}` is {' or '.join(allowed)}, not {value!r}",
            )
            continue
        options.append((str(name), text))
    return tuple(options)


def _option_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def _allow(report: Reporter, key: str, data: Any) -> tuple[str, ...]:
    if data is None:
        return ()
    names = [data] if isinstance(data, str) else data
    if not isinstance(names, list | tuple):
        report.error("bad-type", key, f"`allow` is a list of {', '.join(ALLOWABLE)}, not {data!r}")
        return ()
    for name in names:
        if name not in ALLOWABLE:
            fix = did_you_mean(str(name), ALLOWABLE)
            report.error("unknown-allowance", key, f"`allow` names {name!r}", fix)
    return tuple(str(n) for n in names if n in ALLOWABLE)
