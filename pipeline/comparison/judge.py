"""The five points and the verdict from what was measured: `yes` and `no` need an interval, else it is `unknown`."""

from collections.abc import Sequence

from pipeline.checklist import QUESTIONS
from pipeline.comparison.changes import Change, Measured
from pipeline.comparison.words import amount, gain_text, levels, two
from pipeline.figures import Figure
from pipeline.record import Answer, ChecklistItem, Outcome, Signal, Text, Verdict
from pipeline.signals import FASTER, STABLE
from pipeline.verdict import NEGLIGIBLE, two_of_four

# A gain of the step below this is told as none, where the interval excludes a larger one, %.
SHORTER = 1.0


def checklist(found: Measured) -> list[ChecklistItem]:
    """The five points, measured."""
    return [_targets(found), _path(found), _windows(found), _tails(found), _numbers()]


def verdict(found: Measured, points: Sequence[ChecklistItem], signals: Sequence[Signal]) -> Verdict:
    """Improved, no significant difference or degraded by the interval of the step; undecided without one."""
    gain = found.step.faster
    met, success = two_of_four(points)
    steps = gain_text(gain)
    outcome: Outcome
    if gain is None or gain.low is None or gain.high is None:
        outcome = "undecided"
        en = f"too few steps for an interval, so a difference by chance can't be excluded: step {steps}"
        zh = f"步数太少，无法给出区间，不能排除偶然差异：单步 {steps}"
    elif gain.low > 0:
        outcome = "improved"
        en, zh = f"the step is faster, {steps}: the whole interval is above 0", f"单步变快 {steps}：整个区间大于 0"
    elif gain.high < 0:
        outcome = "degraded"
        en, zh = f"the step is slower, {steps}: the whole interval is below 0", f"单步变慢 {steps}：整个区间小于 0"
    else:
        outcome = "no_significant_difference"
        en, zh = f"the interval of the step's gain contains 0: {steps}", f"单步收益的区间包含 0：{steps}"
    if gain is not None and outcome in ("improved", "degraded") and abs(gain.value) < NEGLIGIBLE:
        en, zh = f"{en}; below {NEGLIGIBLE} %, which is negligible", f"{zh}；小于 {NEGLIGIBLE} %，可忽略"
    if success and outcome == "degraded":
        en += "; the two-of-four rule holds, but it does not make a slower step a gain"
        zh += "；四项中至少两项成立，但单步变慢不能算作收益"
    en += ". Two separate runs: drift between them is not excluded"
    zh += "。两次运行相互独立，不能排除两次运行之间的漂移"
    return Verdict(outcome, Text(en, zh), success, met, tuple(signals), "measured")


def find_signals(found: Measured, points: Sequence[ChecklistItem]) -> list[Signal]:
    """The specification's failure signals that were seen, with the adjustment that each asks for."""
    answers = {point.id: point.answer for point in points}
    target, window, path = (answers[name] for name in ("target_faster", "window_stable", "critical_path"))
    signals = []

    def seen(name: str, en: str, zh: str, next_en: str, next_zh: str) -> None:
        signals.append(Signal(name, None, Text(en, zh), Text(next_en, next_zh)))

    if target == "no" and window == "no":
        seen(
            "no_gain_window_slower",
            "the targets are not faster and the kernels before them are slower: max_size is too large, the copies "
            "compete for bandwidth",
            "目标算子没有变快，前序窗口反而变慢：max_size 过大，争抢带宽",
            "smaller max_size: 0.5 -> 0.3 -> 0.1 of the weight, below that give up",
            "减小 max_size：50% -> 30% -> 10%，再小则放弃",
        )
    elif target == "no" and path != "yes":
        seen(
            "target_not_faster",
            "the targets are not faster, and the kernels before them are not shown to be slower",
            "目标算子没有变快，前序窗口也没有证据表明变慢",
            "check that the copies run at all and in time; keep or reduce max_size, else give the targets up",
            "检查拷贝是否执行且及时；保持或减小 max_size，否则放弃该目标",
        )
    if target == "yes" and path == "no":
        seen(
            "wait_moved",
            "the targets are faster, but the step is not shorter: the wait only moved",
            "目标算子变快，但关键路径没有缩短，只是等待位置挪动",
            "move the dependency forward or back",
            "前移或后移 prefetch 位置",
        )
    if answers["no_new_tail"] == "no":
        seen(
            "new_tail",
            "new long tails: the copies bring a new point of synchronisation",
            "出现新的长拖尾：prefetch 引入新的同步点",
            "change the dependency of the target that copies at that time, or give this position up",
            "调整此时正在拷贝的目标的依赖节点，或放弃该位置",
        )
    if target == "yes" and window == "no":
        seen(
            "window_slower",
            "the targets are faster, but the kernels before them are slower",
            "目标算子变快，但前序窗口明显退化",
            "smaller max_size: 0.5 -> 0.3 -> 0.1 of the weight",
            "减小 max_size：50% -> 30% -> 10%",
        )
    if target == "yes" and window == "yes" and path == "yes":
        seen(
            "grow",
            "the targets are faster and the kernels before them stable: there may be room",
            "目标算子加速，依赖窗口稳定：可能还有余量",
            "larger max_size, 0.5 -> 0.7 -> 1.0 of the weight, one target at a time",
            "增大 max_size：50% -> 70% -> 100%，一次只调一个目标",
        )
    return signals


def _item(name: str, answer: Answer, en: str, zh: str, counts: bool = True) -> ChecklistItem:
    return ChecklistItem(name, QUESTIONS[name], answer, Text(en, zh), counts, "measured")


def _gained(gain: Figure | None, least: float) -> Answer:
    """Yes: the interval is above 0; no: it excludes a gain of `least` %; else it is open."""
    if gain is None or gain.low is None or gain.high is None:
        return "unknown"
    return "yes" if gain.low > 0 else "no" if gain.high < least else "unknown"


def _open(answer: Answer, gain: Figure | None) -> tuple[str, str]:
    """Why a point is open."""
    if answer != "unknown":
        return "", ""
    if gain is None or gain.low is None:
        return "; too few steps for an interval", "；步数太少，无法给出区间"
    return "; the interval is too wide to say", "；区间太宽，无法判断"


def _targets(found: Measured) -> ChecklistItem:
    total = found.target_sum
    if total is None:
        what = (
            (
                f"none of the {found.unpaired_targets} target kernels of the baseline is in the optimised step as such",
                f"优化后的单步中没有 baseline 的 {found.unpaired_targets} 个目标算子",
            )
            if found.unpaired_targets
            else (
                "the baseline has no memory-bound MatMul, GroupedMatmul or MLAProlog",
                "baseline 中没有 memory-bound 的 MatMul、GroupedMatmul 或 MLAProlog",
            )
        )
        return _item("target_faster", "unknown", *what)
    answer = _gained(total.faster, FASTER)
    open_en, open_zh = _open(answer, total.faster)
    each = "; ".join(f"{t.label} {t.before.value:.1f} -> {t.after.value:.1f}" for t in found.targets[:8])
    more = len(found.targets) - 8
    sums = levels(total)
    en = f"{total.calls} kernels, in sum {sums}{open_en}; one kernel, us: {each}"
    zh = f"共 {total.calls} 个算子，合计 {sums}{open_zh}；单个算子（us）：{each}"
    if more > 0:
        en, zh = f"{en}; and {more} more places", f"{zh}；另有 {more} 处"
    if found.unpaired_targets:
        en += f"; {found.unpaired_targets} more are not in the optimised step"
        zh += f"；另有 {found.unpaired_targets} 个不在优化后的单步中"
    return _item("target_faster", answer, en, zh)


def _path(found: Measured) -> ChecklistItem:
    answer = _gained(found.step.faster, SHORTER)
    open_en, open_zh = _open(answer, found.step.faster)
    streams = "; ".join(f"{s.name} {two(s.busy)} / {two(s.idle)}" for s in found.streams)
    step, busy, idle = levels(found.step), two(found.busy), two(found.idle)
    return _item(
        "critical_path",
        answer,
        f"step {step}{open_en}; all streams together busy / idle, us: {busy} / {idle}; per stream: {streams}",
        f"单步 {step}{open_zh}；全部流合计忙碌/空闲（us）：{busy} / {idle}；各流：{streams}",
    )


def _windows(found: Measured) -> ChecklistItem:
    total = found.windows
    if total is None:
        what = ("there are no kernels before the targets", "目标算子之前没有算子")
        return _item("window_stable", "unknown", *what)
    gain = total.faster
    answer: Answer = "unknown"
    if gain is not None and gain.low is not None and gain.high is not None:
        answer = "yes" if gain.low >= -STABLE else "no" if gain.high < -STABLE else "unknown"
    slow = [t for t in found.targets if _slower(t.window)]
    if slow:
        answer = "no"
    open_en, open_zh = _open(answer, gain)
    names = ", ".join(f"{t.label} {amount(t.window)}" for t in slow)
    en = f"{total.calls} kernels before the targets, in sum {levels(total)}{open_en}; "
    zh = f"目标算子之前的 {total.calls} 个算子，合计 {levels(total)}{open_zh}；"
    en += f"slower by more than {STABLE:g} %: before {names}" if slow else f"none is slower by more than {STABLE:g} %"
    zh += f"变慢超过 {STABLE:g} %：{names} 之前" if slow else f"没有窗口变慢超过 {STABLE:g} %"
    return _item("window_stable", answer, en, zh)


def _slower(window: Change | None) -> bool:
    gain = window.faster if window is not None else None
    return gain is not None and gain.high is not None and gain.high < -STABLE


def _tails(found: Measured) -> ChecklistItem:
    late = [s for s in found.streams if s.late]
    words = [f"stream {s.name} ends at {two(s.end)} us" for s in late]
    zh_words = [f"流 {s.name} 结束于 {two(s.end)} us" for s in late]
    kernels = [f"{c.label} {two(c)} us" for c in found.slower[:5]]
    more = len(found.slower) - len(kernels)
    answer: Answer = "no" if words or kernels else "yes"
    if found.step.faster is None or found.step.faster.low is None:
        answer = "unknown"
    open_en, open_zh = _open(answer, found.step.faster)
    en = "; ".join([*words, *kernels]) or "none"
    zh = "；".join([*zh_words, *kernels]) or "没有"
    if more > 0:
        en, zh = f"{en}; and {more} more kernels", f"{zh}；另有 {more} 个算子"
    return _item("no_new_tail", answer, en + open_en, zh + open_zh, counts=False)


def _numbers() -> ChecklistItem:
    return _item(
        "same_numbers",
        "unknown",
        "a profile holds no outputs: compare token ids or logits of both runs (the numerics rung of `run`, "
        "run_on_npu.py)",
        "profile 中没有输出：请另行比较两次运行的 token 或 logits（`run` 的 numerics 验证、run_on_npu.py）",
    )
