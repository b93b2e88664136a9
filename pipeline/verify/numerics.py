"""Rung *numerics*: the transformed model computes the same, bit for bit, and prefetches exactly what was planned."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from models.loading import SEEDED, LoadedModel
from pipeline.record import Rung
from pipeline.verify.building import Build, built, explain, one_thread
from pipeline.verify.calls import deviation, watched_modules
from pipeline.verify.observation import Observation, Observer, observe_calls
from pipeline.verify.scopes import count_scopes, scope_deviation
from transforms.plan import Plan


@dataclass(frozen=True)
class Baseline:
    """What the unmodified tiny model computes; the same for every plan of that model.

    Attributes:
        outputs: of the prefill and of each decode step.
        decode_steps: how many of them are decode steps.
        keys: the model's state_dict keys.
        repeatable: a second run gave the same bits (otherwise a difference would prove nothing).
    """

    outputs: tuple[torch.Tensor, ...]
    decode_steps: int
    keys: frozenset[str]
    repeatable: bool


class NumericsResult(NamedTuple):
    """The rung, and the numbers of prefetch calls and of SuperKernel scopes of one decode step."""

    rung: Rung
    calls_planned: int
    calls_observed: int | None
    scopes_planned: int = 0
    scopes_observed: int | None = None


def baseline_run(loaded: LoadedModel, decode_steps: int = 3) -> Baseline:
    """Run the unmodified model twice. Keep the result for all plans of this model."""
    with one_thread():
        first = tuple(o.clone() for o in loaded.run(decode_steps=decode_steps))
        second = loaded.run(decode_steps=decode_steps)
    repeatable = all(bits_equal(a, b) for a, b in zip(first, second, strict=True))
    return Baseline(first, decode_steps, frozenset(loaded.module.state_dict()), repeatable)


def check_numerics(
    loaded: LoadedModel,
    plan: Plan,
    build: Build,
    baseline: Baseline | None = None,
    observe: Observer | None = None,
) -> NumericsResult:
    """Compare the transformed tiny model with the baseline, switch on and off, its calls and scopes with the plan.

    Args:
        loaded: the tiny model, unmodified.
        plan: resolved on the tiny model.
        build: builds the transformed model with the switch on or off, see `building`.
        baseline: from `baseline_run`; made here if None.
        observe: the observer of the prefetch operator; `models.prefetch.observe` if None.
    """
    planned, scopes = len(plan.prefetch), len(plan.scopes)
    if baseline is None:
        baseline = baseline_run(loaded)
    if not baseline.repeatable:
        rung = Rung("could_not_check", "the baseline itself gives other bits when it runs again")
        return NumericsResult(rung, planned, None, scopes)
    if not all(bool(torch.isfinite(o).all()) for o in baseline.outputs if o.is_floating_point()):
        rung = Rung("could_not_check", "the baseline's outputs are not finite")
        return NumericsResult(rung, planned, None, scopes)

    findings: list[str] = []
    observed: int | None = None
    scopes_observed: int | None = None
    runs: dict[bool, Observation] = {}
    watched = watched_modules(plan, loaded.module)
    for switch in (True, False):
        name = "on" if switch else "off"
        try:
            with one_thread(), built(build, switch) as module:
                keys = frozenset(module.state_dict())
                follow_all = switch and bool(plan.scopes)
                seen = observe_calls(loaded, module, watched, baseline.decode_steps, observe, follow_all)
        except Exception as error:  # whatever a rewritten file raises is a finding, not a crash of ours
            findings.append(f"switch {name}: the transformed model does not run: {explain(error)}")
            continue
        runs[switch] = seen
        findings += _state_dict(baseline, keys, name)
        findings += _outputs(baseline, seen, name)
        if switch:
            decode = [step for step in seen.steps if step.decode]
            observed = len(decode[0].calls) if decode else None
            found = deviation(plan, seen, baseline.decode_steps)
            findings += [found] if found else []
            scopes_observed = count_scopes(decode[0]) if decode else None
            found = scope_deviation(plan, seen)
            findings += [found] if found else []
        else:
            count = sum(len(step.calls) for step in seen.steps) + len(seen.stray)
            if count:
                findings.append(f"switch off: {count} prefetch call(s) were observed, none must be")
            count = sum(map(count_scopes, seen.steps)) + len(seen.stray_scopes)
            if count:
                findings.append(f"switch off: {count} scope(s) were opened, none must be")
    rung = Rung("failed", "; ".join(findings)) if findings else _passed(baseline, planned, scopes, loaded)
    return NumericsResult(rung, planned, observed, scopes, scopes_observed)


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Same type, shape and bits (so 0.0 and -0.0 differ, and a NaN equals itself)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))


def _passed(baseline: Baseline, planned: int, scopes: int, loaded: LoadedModel) -> Rung:
    steps = baseline.decode_steps
    text = f"prefill and {steps} decode steps equal the baseline bit for bit, switch on and off; "
    zh = f"prefill 与 {steps} 步 decode 在开关打开、关闭时均与 baseline 逐位一致;"
    if planned or not scopes:
        text += (
            f"{planned} prefetch calls per decode step, each with the planned weight, dependency and size, in order; "
        )
        zh += f"每步 decode 有 {planned} 次 prefetch 调用,权重、依赖、大小与顺序均与计划一致;"
    if scopes:
        text += f"{scopes} SuperKernel scopes per decode step, from the planned first to the planned last module; "
        zh += f"每步 decode 有 {scopes} 个 SuperKernel 范围,起止模块均与计划一致;"
    weights, zh_weights = (
        ("", "") if loaded.weights == SEEDED else (f"; on {loaded.weights}", ";使用 checkpoint 自身的权重")
    )
    return Rung(
        "passed",
        f"{text}none in prefill, none with the switch off{weights}",
        f"{zh}prefill 中没有,开关关闭时没有{zh_weights}",
    )


def _state_dict(baseline: Baseline, keys: frozenset[str], name: str) -> list[str]:
    extra, missing = sorted(keys - baseline.keys), sorted(baseline.keys - keys)
    parts = [f"{what} {', '.join(names[:3])}" for what, names in (("extra", extra), ("missing", missing)) if names]
    return [f"switch {name}: the state_dict keys differ from the baseline's: {'; '.join(parts)}"] if parts else []


def _outputs(baseline: Baseline, seen: Observation, name: str) -> list[str]:
    """The first output that differs, in words."""
    if len(seen.outputs) != len(baseline.outputs):
        return [f"switch {name}: {len(seen.outputs)} outputs, the baseline has {len(baseline.outputs)}"]
    for position, (expected, got) in enumerate(zip(baseline.outputs, seen.outputs, strict=True)):
        if bits_equal(expected, got):
            continue
        step = "prefill" if position == 0 else f"decode step {position}"
        if expected.dtype != got.dtype or expected.shape != got.shape:
            what = f"{list(got.shape)} {got.dtype} instead of {list(expected.shape)} {expected.dtype}"
        else:
            unequal = int((expected != got).sum())
            largest = float((expected.detach().double() - got.detach().double()).abs().max())
            what = f"{unequal} of {expected.numel()} values differ from the baseline, by up to {largest:.3g}"
        return [f"switch {name}: the output of {step} is not the baseline's: {what}"]
    return []
