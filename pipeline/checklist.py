"""The five points to check after a change, answered from a modelled step."""

from pipeline.effects import Effects
from pipeline.figures import Figure
from pipeline.record import Answer, ChecklistItem, Rung, Text
from pipeline.signals import STABLE, TAIL_OF_STEP, TINY

QUESTIONS = {
    "target_faster": Text("Are the target kernels faster?", "目标算子执行时间是否下降?"),
    "critical_path": Text("Is the critical path shorter?", "关键路径是否缩短?"),
    "window_stable": Text("Are the dependency windows stable?", "依赖窗口是否稳定?"),
    "no_new_tail": Text("Are there no new long tails?", "是否没有出现新的长拖尾?"),
    "same_numbers": Text("Are the outputs the same?", "功能结果是否保持一致?"),
}


def make_checklist(
    found: Effects, baseline: Figure, optimized: Figure, gain: Figure, numerics: Rung | None
) -> list[ChecklistItem]:
    """The five points.

    Args:
        found: effects of the plan on the nominal step.
        baseline, optimized: time of the step, us.
        gain: % of baseline, paired band.
        numerics: result of that rung, None if it was not asked for.
    """
    return [
        _targets(found),
        _path(found, baseline, optimized, gain),
        _windows(found),
        _tails(found, baseline),
        _numbers(numerics),
    ]


def new_tails(found: Effects, step: float) -> list[str]:
    """Streams that end later and kernels that take much longer than before, in words.

    Args:
        found: the effects.
        step: time of the baseline step, us.
    """
    late = [s for s in found.streams if s.end_optimized - s.end_baseline > step * TAIL_OF_STEP / 100]
    words = [f"stream {s.name} ends at {s.end_optimized:.1f} us instead of {s.end_baseline:.1f}" for s in late]
    words += [
        f"{s.kernel.op} of {s.kernel.module or 'the model'} {s.baseline:.1f} -> {s.optimized:.1f} us"
        for s in found.slower
    ]
    return words


def _item(name: str, answer: Answer, en: str, zh: str, counts: bool = True) -> ChecklistItem:
    return ChecklistItem(name, QUESTIONS[name], answer, Text(en, zh), counts)


def _targets(found: Effects) -> ChecklistItem:
    answer: Answer = "yes" if found.target_baseline - found.target_optimized > 1e-6 * found.target_baseline else "no"
    sums = f"{found.target_baseline:.1f} -> {found.target_optimized:.1f} us"
    worse = [e.target for e in found.targets if e.faster <= 0]
    each = ", ".join(f"{e.target} {e.baseline:.1f} -> {e.optimized:.1f}" for e in found.targets)
    if found.targets:
        en, zh = (
            f"{len(found.kernels)} kernels, in sum {sums}; one kernel, us: {each}",
            f"共 {len(found.kernels)} 个算子,合计 {sums};单个算子(us):{each}",
        )
    else:  # SuperKernel alone
        count = len(found.kernels)
        en, zh = f"{count} kernels inside scopes, in sum {sums}", f"scope 内 {count} 个算子,合计 {sums}"
    if worse:
        en, zh = f"{en}; not faster: {', '.join(worse)}", f"{zh};没有变快:{'、'.join(worse)}"
    return _item("target_faster", answer, en, zh)


def _path(found: Effects, baseline: Figure, optimized: Figure, gain: Figure) -> ChecklistItem:
    """A band that contains 0 is no answer, unless the nominal step is not shorter either."""
    low = gain.value if gain.low is None else gain.low
    answer: Answer = "yes" if low > 0 else "unknown" if gain.value > TINY else "no"
    step = f"{baseline.value:.1f} -> {optimized.value:.1f} us, {gain.value:+.2f} %"
    streams = "; ".join(
        f"{s.name} {s.busy_baseline:.1f} -> {s.busy_optimized:.1f} / "
        f"{s.end_baseline - s.busy_baseline:.1f} -> {s.end_optimized - s.busy_optimized:.1f}"
        for s in found.streams
    )
    open_en, open_zh = (
        ("; nominal only, the band contains 0", ";仅名义值缩短,区间包含 0") if answer == "unknown" else ("", "")
    )
    return _item(
        "critical_path",
        answer,
        f"step {step}{open_en}; per stream busy / waiting, us: {streams}",
        f"单步 {step}{open_zh};各流忙碌/等待(us):{streams}",
    )


def _windows(found: Effects) -> ChecklistItem:
    slow = [e for e in found.targets if e.window_change < -STABLE]
    sums = f"{found.window_baseline:.1f} -> {found.window_optimized:.1f} us"
    names = ", ".join(f"{e.target} {-e.window_change:+.1f} %" for e in slow)
    en = f"kernels in the windows in sum {sums}; " + (
        f"slower by more than {STABLE:g} %: {names}" if slow else f"no window is slower by more than {STABLE:g} %"
    )
    zh = f"窗口内算子合计 {sums};" + (f"变慢超过 {STABLE:g} %:{names}" if slow else f"没有窗口变慢超过 {STABLE:g} %")
    return _item("window_stable", "no" if slow else "yes", en, zh)


def _tails(found: Effects, baseline: Figure) -> ChecklistItem:
    tails = new_tails(found, baseline.value)
    words = "; ".join(tails)
    ends = ", ".join(f"{s.name} {s.end_baseline:.1f} -> {s.end_optimized:.1f}" for s in found.streams)
    return _item(
        "no_new_tail",
        "no" if tails else "yes",
        f"{words or 'none'}; ends of the streams, us: {ends}",
        f"{words or '没有'};各流结束时间(us):{ends}",
        counts=False,
    )


def _numbers(numerics: Rung | None) -> ChecklistItem:
    if numerics is None or numerics.status in ("not_run", "could_not_check"):
        why = numerics.detail if numerics is not None else "the numerics rung did not run"
        return _item("same_numbers", "unknown", why, numerics.get("zh") if numerics is not None else "未执行数值验证")
    answer: Answer = "yes" if numerics.status == "passed" else "no"
    return ChecklistItem(
        "same_numbers", QUESTIONS["same_numbers"], answer, Text(numerics.detail, numerics.get("zh")), True, "measured"
    )
