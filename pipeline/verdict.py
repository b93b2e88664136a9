"""The outcome of a trial: from the paired band, and beside it the two-of-four rule of the checklist."""

from collections.abc import Sequence

from pipeline.figures import Figure, written
from pipeline.record import ChecklistItem, Outcome, Rung, Signal, Text, Verdict

# A gain below this, in per cent, is not worth a change, however certain it is.
NEGLIGIBLE = 0.1
# Of the four points (targets faster, critical path shorter, window stable, same numbers) so many must hold.
ENOUGH = 2


def modelled_outcome(gain: Figure) -> Outcome:
    """`improved` if the whole band of the gain is above 0, `worse` if it is below, else `undecided`."""
    low, high = _band(gain)
    if low > 0:
        return "improved"
    return "worse" if high < 0 else "undecided"


def modelled_verdict(
    gain: Figure,
    checklist: Sequence[ChecklistItem],
    signals: Sequence[Signal] = (),
    numerics: Rung | None = None,
    empty: bool = False,
) -> Verdict:
    """The verdict of a trial whose performance was modelled.

    Args:
        gain: of the step, % of baseline, positive = faster, with its paired band.
        checklist: the five points.
        signals: failure signals that were seen.
        numerics: result of that rung; if it failed, no gain counts.
        empty: the plan has no prefetch and no scope: the points hold or not without saying anything.
    """
    met, success = ((), None) if empty else two_of_four(checklist)
    if numerics is not None and numerics.status == "failed":
        reason = Text(
            f"the change is not correct, so no gain counts: {numerics.detail}",
            f"改动不正确,任何收益都不算数:{numerics.get('zh')}",
        )
        return Verdict("failed", reason, success, met, tuple(signals))
    if empty:
        reason = Text(
            "the plan is empty (no prefetch, no SuperKernel scope): nothing changes, so there is nothing to judge",
            "计划为空(没有 prefetch,也没有 SuperKernel scope):没有任何改动,因此无从判断",
        )
        return Verdict("undecided", reason, None, (), tuple(signals))
    outcome = modelled_outcome(gain)
    return Verdict(outcome, _reason(gain, outcome, success), success, met, tuple(signals))


def two_of_four(checklist: Sequence[ChecklistItem]) -> tuple[tuple[str, ...], bool | None]:
    """The points that hold, and whether they are enough; None if too few were answered to say."""
    four = [item for item in checklist if item.counts]
    met = tuple(item.id for item in four if item.answer == "yes")
    if len(met) >= ENOUGH:
        return met, True
    open_points = sum(item.answer == "unknown" for item in four)
    return met, None if len(met) + open_points >= ENOUGH else False


def _band(gain: Figure) -> tuple[float, float]:
    low = gain.value if gain.low is None else gain.low
    high = gain.value if gain.high is None else gain.high
    return low, high


def _reason(gain: Figure, outcome: Outcome, success: bool | None) -> Text:
    low, high = _band(gain)
    value, least, most = (written(v, 2, sign=True) for v in (gain.value, low, high))
    figures = f"{value} % [{least}, {most}]"
    if low == high == 0.0:
        en, zh = f"the step does not change: {figures}", f"单步耗时没有变化:{figures}"
    elif outcome == "improved":
        en, zh = f"the whole band of the gain is above 0: {figures}", f"收益的整个区间都大于 0:{figures}"
    elif outcome == "worse":
        en, zh = f"the whole band of the gain is below 0: {figures}", f"收益的整个区间都小于 0:{figures}"
    else:
        en = f"the band of the gain contains 0: {figures}; what is not known about the machine decides"
        zh = f"收益区间包含 0:{figures};结果取决于机器上尚不清楚的参数"
    if (outcome != "undecided" and max(abs(low), abs(high)) < NEGLIGIBLE) or 0 < abs(gain.value) < NEGLIGIBLE:
        en += f"; below {NEGLIGIBLE} %, which is negligible"
        zh += f";小于 {NEGLIGIBLE} %,可忽略"
    if success and outcome == "worse":
        en += "; the two-of-four rule holds, but it does not make a slower step a gain"
        zh += ";虽满足“四项至少两项”,但单步变慢仍不算收益"
    if success is False and outcome == "improved":
        en += "; but fewer than two of the four points hold"
        zh += ";但四项中满足的不足两项"
    return Text(f"{en} (modelled, no NPU was used)", f"{zh}(模型推算,未使用 NPU)")
