"""The recipe's `superkernel` section: keys, types, options and custom scopes, checked without any model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.paths import Pattern
from models.problems import did_you_mean
from pipeline.recipe_fields import check_keys, read_path, read_switch
from pipeline.reporter import Reporter
from pipeline.superkernel_options import Options, read_options

SUPERKERNEL_KEYS = ("enabled", "strategy", "options", "allow", "phase", "scopes")
SCOPE_KEYS = ("first", "last", "label", "options")
STRATEGIES = ("attention", "moe", "decoder_layers", "auto", "custom")
ALLOWABLE = ("a2", "npugraph_ex")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LABEL = re.compile(r"[A-Za-z0-9_.-]+\Z")


@dataclass(frozen=True)
class CustomScope:
    """One entry of `recipe.superkernel.scopes`.

    Attributes:
        name: its key.
        first, last: paths of the first and the last module called inside; equal for a single module.
        label: template of the label; `{i}` is the layer. Default: `<name>_{i}`.
        options: on top of the section's.
    """

    name: str
    first: Pattern
    last: Pattern
    label: str
    options: Options = ()

    @property
    def key(self) -> str:
        return f"recipe.superkernel.scopes.{self.name}"


@dataclass(frozen=True)
class SuperKernelSection:
    """`recipe.superkernel`.

    Attributes:
        enabled: whether scopes are asked for.
        strategy: which part of a layer a scope covers.
        options: (name, text) in the order written.
        allow: preconditions that the recipe waives: `a2`, `npugraph_ex`.
        scopes: for strategy `custom`.
    """

    enabled: bool = False
    strategy: str = "attention"
    options: Options = ()
    allow: tuple[str, ...] = ()
    scopes: tuple[CustomScope, ...] = ()


def parse_superkernel(report: Reporter, data: Any) -> SuperKernelSection:
    """Check the section; problems go to `report`."""
    key = "recipe.superkernel"
    if data is None:
        return SuperKernelSection()
    if not isinstance(data, Mapping):
        report.error("bad-type", key, f"`{key}` is a mapping of {', '.join(SUPERKERNEL_KEYS)}, not {data!r}")
        return SuperKernelSection()
    check_keys(report, key, data, SUPERKERNEL_KEYS)
    enabled = read_switch(report, f"{key}.enabled", data.get("enabled", False))
    strategy = data.get("strategy", "attention")
    if strategy not in STRATEGIES:
        fix = did_you_mean(str(strategy), STRATEGIES)
        report.error("unknown-strategy", f"{key}.strategy", f"unknown strategy {strategy!r}", fix)
        strategy = "attention"
    _check_phase(report, f"{key}.phase", data.get("phase", "decode"))
    options = read_options(report, f"{key}.options", data.get("options"))
    allow = _allow(report, f"{key}.allow", data.get("allow"))
    scopes = _scopes(report, f"{key}.scopes", data.get("scopes"), enabled and strategy == "custom")
    return SuperKernelSection(enabled, strategy, options, allow, scopes)


def _check_phase(report: Reporter, key: str, phase: Any) -> None:
    if phase == "decode":
        return
    if phase == "prefill":
        report.error(
            "decode-only",
            key,
            "SuperKernel is for decode only: in prefill the lengths of the inputs change from step to step, and a "
            "scope needs a static graph",
            "Leave `phase` out; generated code enters a scope in decode only.",
        )
        return
    report.error("bad-type", key, f"`phase` is decode, not {phase!r}", "Leave it out.")


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


def _scopes(report: Reporter, key: str, data: Any, needed: bool) -> tuple[CustomScope, ...]:
    if data is not None and not isinstance(data, Mapping):
        report.error(
            "bad-type",
            key,
            f"`scopes` is a mapping from names to scopes, not {data!r}",
            "Write `scopes: {moe: {first: ..., last: ...}}`.",
        )
        return ()
    if not data:
        if needed:
            report.error(
                "no-scopes",
                key,
                "strategy `custom` has no scope",
                "Add one, e.g. scopes: {moe: {first: layers.{i}.mlp}}, or choose another strategy.",
            )
        return ()
    found = [_scope(report, f"{key}.{name}", name, value) for name, value in data.items()]
    return tuple(scope for scope in found if scope is not None)


def _scope(report: Reporter, key: str, name: Any, data: Any) -> CustomScope | None:
    if not isinstance(name, str) or not _NAME.match(name):
        report.error(
            "bad-name",
            key,
            f"`{name}` can't be a scope's name",
            "Use letters, digits and underscores, so that the command line can address it.",
        )
        return None
    if not isinstance(data, Mapping):
        report.error("bad-type", key, f"a scope is a mapping of {', '.join(SCOPE_KEYS)}, not {data!r}")
        return None
    check_keys(report, key, data, SCOPE_KEYS)
    first = read_path(report, f"{key}.first", data.get("first"))
    last = first if data.get("last") is None else read_path(report, f"{key}.last", data["last"])
    options = read_options(report, f"{key}.options", data.get("options"))
    if first is None or last is None:
        return None
    if last.wildcards > first.wildcards:
        report.error(
            "ambiguous-wildcard",
            f"{key}.last",
            f"`{last.text}` has more `*` or `[...]` than `{first.text}`",
            "Each wildcard of `last` stands for what the wildcard at the same place of `first` matched.",
        )
        return None
    label = _label(report, f"{key}.label", data.get("label"), name, first.uses_layer)
    return CustomScope(name, first, last, label, options) if label is not None else None


def _label(report: Reporter, key: str, value: Any, name: str, per_layer: bool) -> str | None:
    if value is None:
        return f"{name}_{{i}}" if per_layer else name
    if not isinstance(value, str) or not _LABEL.match(value.replace("{i}", "0")):
        report.error(
            "bad-label",
            key,
            f"{value!r} can't be a label: only letters, digits, `_`, `-`, `.` and {{i}} for the layer",
            f"Leave it out for `{name}_{{i}}`.",
        )
        return None
    if per_layer and "{i}" not in value:
        report.error(
            "bad-label",
            key,
            f"label `{value}` has no {{i}}: the scopes of all layers would have one name, and the compiler would take "
            "them for one scope",
            f"Write e.g. `{value}_{{i}}`.",
        )
        return None
    return value
