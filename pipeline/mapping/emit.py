"""A recipe written from a profile: targets that resolve on the model, with the evidence of each as comments."""

import re
import textwrap
from collections.abc import Mapping as Lookup
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.problems import Problem
from models.workload import Workload
from pipeline.analysis.results import Chain
from pipeline.figures import band_text
from pipeline.mapping.naming import Named, Unnamed
from pipeline.mapping.scopes import NamedScope
from pipeline.recipe import parse_recipe
from pipeline.resolve import Resolution, resolve
from pipeline.sizes_text import approximate_size

if TYPE_CHECKING:
    from models.loading import LoadedModel
    from pipeline.simulator.machine import Machine

_TARGET = re.compile(r"recipe\.prefetch\.targets\.([^.]+)")
_SCOPE = re.compile(r"recipe\.superkernel\.scopes\.([^.]+)")
_RULES = {
    "3a": "its dependency takes the bandwidth itself, and its output frees it (rule 3a)",
    "3b": "its dependency leaves the bandwidth free (rule 3b)",
}


@dataclass(frozen=True)
class Written:
    """A recipe from a profile.

    Attributes:
        text: the YAML file.
        data: the same as `parse_recipe` takes it.
        kept: targets in it.
        left_out: targets that do not resolve, with the reason.
        resolution: of what is in it, all targets at once and the scopes on, on the full model.
        scopes: SuperKernel scopes in it, which are off.
    """

    text: str
    data: Lookup[str, Any]
    kept: tuple[Named, ...]
    left_out: tuple[tuple[Named, str], ...]
    resolution: Resolution
    scopes: tuple[NamedScope, ...] = ()


@dataclass(frozen=True)
class Header:
    """What the recipe is for.

    Attributes:
        name: of the recipe, e.g. `longcat_flash/from_profile`.
        model, deployment, hardware, runtime: options of the config groups.
        lines: comment lines on top.
    """

    name: str
    model: str
    deployment: str
    hardware: str
    runtime: str
    lines: tuple[str, ...] = ()


def write_recipe(
    header: Header,
    named: Sequence[Named],
    loaded: "LoadedModel",
    workload: Workload,
    machine: "Machine",
    unnamed: Sequence[Unnamed] = (),
    chains: Sequence[tuple[Chain, str]] = (),
    notes: Lookup[str, Sequence[str]] | None = None,
    only: Sequence[str] | None = None,
    scopes: Sequence[NamedScope] = (),
    remarks: Sequence[str] = (),
) -> Written:
    """Write the recipe of some targets.

    What does not resolve on the model is left out and stands in the file as a comment with its reason, so that
    `validate` accepts what is written.

    Args:
        header: names and comment lines.
        named: the targets, in order of what they save.
        loaded: the model, full size.
        workload: its traced step.
        machine: for shares of L2 and windows.
        unnamed: candidates without a place, for the comments.
        chains: chains worth a SuperKernel scope that have none, with the modules at their ends, for the comments.
        notes: target -> further lines of evidence.
        only: the targets that the replay chose together; None for all.
        scopes: SuperKernel scopes, which stand in the recipe switched off.
        remarks: lines of evidence of the scopes.
    """
    left_out: list[tuple[Named, str]] = []
    kept, standing = list(named), list(scopes)
    while True:
        # All of it at once: whoever takes `only:` away or switches the scopes on gets a recipe that resolves, too.
        recipe, problems = parse_recipe(_data(header, kept, None, standing, bool(standing)))
        resolution = resolve(recipe, loaded, workload, machine, exe_mode=header.runtime)
        found = [*problems, *resolution.problems]
        wrong, wrong_scopes = _errors(found, _TARGET), _errors(found, _SCOPE)
        bad = [target for target in kept if target.name in wrong]
        if not bad and not any(scope.name in wrong_scopes for scope in standing):
            break
        left_out += [(target, wrong[target.name]) for target in bad]
        kept = [target for target in kept if target not in bad]
        standing = [scope for scope in standing if scope.name not in wrong_scopes]
    lost = [(s.chain, f"{s.first} to {s.last}") for s in scopes if s not in standing]
    layers = {m.target: m.matched for m in resolution.matches}
    text = _text(header, kept, only, [*_reasons(left_out), *_not_placed(unnamed)], notes or {}, layers)
    text += "\n".join(_superkernel(standing, [*chains, *lost], remarks)) + "\n"
    return Written(text, _data(header, kept, only, standing), tuple(kept), tuple(left_out), resolution, tuple(standing))


def _errors(problems: Sequence[Problem], pattern: re.Pattern[str]) -> dict[str, str]:
    """Target or scope -> its first error."""
    found: dict[str, str] = {}
    for problem in problems:
        name = pattern.match(problem.key or "")
        if problem.severity == "error" and name:
            found.setdefault(name[1], problem.message)
    return found


def _reasons(left_out: Sequence[tuple[Named, str]]) -> list[str]:
    return [f"left out: {target.weight} after {target.dependency}: {reason}" for target, reason in left_out]


def _not_placed(unnamed: Sequence[Unnamed]) -> list[str]:
    return [f"not placed: {other.candidate.target.label}: {other.reason['en']}" for other in unnamed]


def _data(
    header: Header,
    kept: Sequence[Named],
    only: Sequence[str] | None,
    scopes: Sequence[NamedScope] = (),
    scopes_on: bool = False,
) -> dict[str, Any]:
    superkernel: dict[str, Any] = {"enabled": scopes_on, "strategy": "custom" if scopes else "attention"}
    superkernel["options"] = {"stream-fusion": 1}
    if scopes:
        superkernel["scopes"] = {s.name: {"first": s.first, "last": s.last} for s in scopes}
    targets = {
        t.name: {"weight": t.weight, "dependency": t.dependency, "coefficient": float(t.coefficient)} for t in kept
    }
    return {
        "name": header.name,
        "model": header.model,
        "deployment": header.deployment,
        "hardware": header.hardware,
        "runtime": header.runtime,
        "prefetch": {"enabled": bool(kept), "coefficient": 0.5, "only": _only(kept, only), "targets": targets},
        "superkernel": superkernel,
    }


def _only(kept: Sequence[Named], only: Sequence[str] | None) -> list[str] | None:
    """What the replay chose of what is in the recipe; None where that is all or nothing."""
    chosen = [t.name for t in kept if only is not None and t.name in only]
    return chosen if 0 < len(chosen) < len(kept) else None


def _text(
    header: Header,
    kept: Sequence[Named],
    only: Sequence[str] | None,
    remarks: Sequence[str],
    notes: Lookup[str, Sequence[str]],
    layers: Lookup[str, int],
) -> str:
    lines = [row for line in header.lines for row in _comment(line, "")]
    lines += [f"{key}: {getattr(header, key)}" for key in ("name", "model", "deployment", "hardware", "runtime")]
    lines += ["prefetch:", f"  enabled: {'true' if kept else 'false'}"]
    chosen = _only(kept, only)
    lines += ["  coefficient: 0.5              # of targets that set none"]
    if chosen is None:
        lines.append("  only: null")
    else:
        lines += _comment("what the replay chose together; `only: null` takes all", "  ")
        lines += ["  only:", *(f"    - {name}" for name in chosen)]
    lines.append("  targets:" if kept else "  targets: {}")
    told: dict[int, str] = {}  # candidate -> the first target of it
    for target in kept:
        first = told.setdefault(id(target.candidate), target.name)
        evidence = [*_evidence(target, layers.get(target.name, target.layers)), *notes.get(target.name, ())]
        same = f"another weight of the same kernel as {first}"
        for line in evidence if first == target.name else [same, *evidence[3:]]:
            lines += _comment(line, "    ")
        lines += [f"    {target.name}:", f"      weight: {target.weight}", f"      dependency: {target.dependency}"]
        lines.append(f"      coefficient: {target.coefficient}")
    for remark in remarks:
        lines += _comment(remark, "    ")
    return "\n".join(lines) + "\n"


def _superkernel(
    scopes: Sequence[NamedScope], chains: Sequence[tuple[Chain, str]], remarks: Sequence[str]
) -> list[str]:
    """The section, switched off, with the evidence of each scope."""
    lines = ["superkernel:"]
    for chain, modules in chains:
        lines += _comment(f"{_chain(chain)} ({modules}): has no scope", "  ")
    for remark in remarks if scopes else ():
        lines += _comment(remark, "  ")
    lines += ["  enabled: false", f"  strategy: {'custom' if scopes else 'attention'}", "  options: {stream-fusion: 1}"]
    if scopes:
        lines.append("  scopes:")
    for scope in scopes:
        lines += _comment(_chain(scope.chain), "    ")
        lines += _comment(f"{scope.kernels} kernels of the model in it; placed in {scope.layers} layers", "    ")
        lines += [f"    {scope.name}:", f"      first: {scope.first}", f"      last: {scope.last}"]
    return lines


def _chain(chain: Chain) -> str:
    return (
        f"{chain.kernels} kernels from {chain.first.label} to {chain.last.label}, {chain.calls} per step: a scope "
        f"would save {band_text(chain.saving)} each (modelled)"
    )


def _comment(text: str, indent: str) -> list[str]:
    """A comment of one sentence, wrapped."""
    if not text:
        return [f"{indent}#"]
    return textwrap.wrap(
        " ".join(text.split()), 118, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _evidence(target: Named, layers: int) -> list[str]:
    c = target.candidate
    return [
        f"{c.target.label}, {c.calls} per step, {c.target_us:.1f} us each (measured), "
        f"weight {approximate_size(c.weight_bytes)}",
        f"starts after {c.dependency.label}; window {c.window_us:.1f} us (measured), "
        f"{approximate_size(int(c.fits.value))} fit (modelled); {_RULES.get(c.rule, c.rule)}",
        f"size limited by {c.limited_by.replace('_', ' ')}; saves {band_text(c.saving)} per step at most (modelled)",
        f"placed in {target.layers} of {target.pairs} layers, surely in {target.sure}"
        + ("; the kernel of the profile has no module of its own: this is the next one that has" * (target.moved > 0))
        + (f"; the paths stand for {layers} layers" * (layers != target.layers)),
    ]
