"""Failure signals and the adjustment that follows from each: which target, from what to what."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from pipeline.effects import Effect, Effects
from pipeline.figures import Figure
from pipeline.record import Signal, Text
from pipeline.sizes_text import approximate_size

# A target kernel counts as faster from this change on, %.
FASTER = 1.0
# The kernels of a window count as stable up to this slow-down, %; from `SEVERE` on, a smaller size is not enough.
STABLE = 3.0
SEVERE = 10.0
# Shares: a copy is in time from `IN_TIME` on, late below `LATE`; `LOST`: so much pushed out explains a missing gain.
IN_TIME = 0.95
LATE = 0.5
LOST = 0.3
# A stream may end later by this share of the step before it counts as a new tail, %.
TAIL_OF_STEP = 1.0
# The step's gain counts from here on, %; smaller ones are the simulator's rounding.
TINY = 0.01
# The sizes of the spec, in its order.
SIZES = (Decimal("0.1"), Decimal("0.3"), Decimal("0.5"), Decimal("0.7"), Decimal("1.0"))


@dataclass(frozen=True)
class Setting:
    """How a target is set in the recipe.

    Attributes:
        coefficient: share of the weight in force; None if an explicit size beats it.
        theoretical_size, max_size: bytes.
        earlier: a legal dependency that comes before the present one, as a recipe writes it, or None.
        later: the same behind it.
        alone: gain of the step with only this target, %.
        without: what the plan loses without it, percentage points.
    """

    coefficient: Decimal | None
    theoretical_size: int
    max_size: int
    earlier: Callable[[], str | None] = lambda: None
    later: Callable[[], str | None] = lambda: None
    alone: Figure | None = None
    without: Figure | None = None


def target_signal(effect: Effect, setting: Setting) -> Signal | None:
    """What to change about one target; None if nothing follows."""
    slower = effect.window_change < -STABLE
    faster = effect.faster >= FASTER
    window = f"{-effect.window_change:.1f} %"
    kernel = f"{effect.op} {effect.baseline:.1f} -> {effect.optimized:.1f} us"
    hurts = setting.without is not None and setting.without.value < -TINY
    if slower and not faster:
        seen = Text(
            f"the target is not faster ({kernel}) and the kernels in its window are {window} slower: the copy is too "
            "large and competes for bandwidth",
            f"目标算子没有变快({kernel}),窗口内算子反而慢了 {window}:max_size 过大,争抢带宽",
        )
        if -effect.window_change > SEVERE:
            return _move(effect, setting, "no_gain_window_slower", seen, earlier=True)
        return _shrink(effect, setting, "no_gain_window_slower", seen)
    if slower and hurts:
        seen = Text(
            f"the target is faster ({kernel}), but the kernels in its window are {window} slower, and the whole plan "
            f"is better without it by {_points(setting.without, -1, 'percentage points')}",
            f"目标算子变快({kernel}),但窗口内算子慢了 {window};"
            f"去掉它整体反而好 {_points(setting.without, -1, '个百分点')}",
        )
        return _shrink(effect, setting, "window_slower", seen)
    if not faster and _value(setting.without) > TINY:
        seen = Text(
            f"the target's own kernel is not faster ({kernel}), since it now runs beside other traffic, but without it "
            f"the plan loses {_points(setting.without, 1, 'percentage points')}",
            f"目标算子本身没有变快({kernel}),因为它现在与其他访存同时进行,"
            f"但去掉它整体会损失 {_points(setting.without, 1, '个百分点')}",
        )
        return Signal("keep", effect.target, seen, Text("keep this target", "保留该目标"))
    if not faster and effect.pushed_out >= LOST:
        seen = Text(
            f"the target is not faster ({kernel}): {effect.pushed_out:.0%} of what was copied had left L2 before it "
            "was read",
            f"目标算子没有变快({kernel}):{effect.pushed_out:.0%} 的预取数据在读取前已被挤出 L2",
        )
        return _move(effect, setting, "target_not_faster", seen, earlier=False)
    if not faster and effect.covered < LATE:
        seen = Text(
            f"the target is not faster ({kernel}): only {effect.covered:.0%} of the copy had arrived when it started "
            f"(window {effect.window:.1f} us, copy {effect.copy_time:.1f} us)",
            f"目标算子没有变快({kernel}):它开始时只有 {effect.covered:.0%} 的数据到达"
            f"(窗口 {effect.window:.1f} us,拷贝 {effect.copy_time:.1f} us)",
        )
        return _move(effect, setting, "target_not_faster", seen, earlier=True)
    if not faster:
        seen = Text(
            f"the target is not faster ({kernel}) although {effect.covered:.0%} of the copy was in time: HBM takes "
            f"{effect.memory_bound:.0%} of its time",
            f"目标算子没有变快({kernel}),尽管 {effect.covered:.0%} 的数据已及时到达:"
            f"HBM 传输占其耗时 {effect.memory_bound:.0%}",
        )
        return _give_up(effect, "target_not_faster", seen)
    if hurts:
        seen = Text(
            f"the target is faster ({kernel}), but the plan is better without it by "
            f"{_points(setting.without, -1, 'percentage points')}: its copy takes bandwidth that others need",
            f"目标算子变快({kernel}),但去掉它整体反而好 {_points(setting.without, -1, '个百分点')}:"
            "它占用了其他算子更需要的带宽",
        )
        return _shrink(effect, setting, "plan_better_without", seen)
    if effect.covered >= IN_TIME and not slower:
        return _grow(effect, setting, kernel)
    return None


def plan_signals(found: Effects, gain: Figure, step: float, tails: list[str]) -> list[Signal]:
    """Signals about the plan as a whole.

    Args:
        found: the effects.
        gain: of the step, %.
        step: time of the baseline step, us.
        tails: new long tails, in words.
    """
    signals = []
    faster = found.target_baseline - found.target_optimized
    if faster > found.target_baseline * FASTER / 100 and gain.value <= TINY:
        late = [e for e in found.targets if e.covered < LATE]
        ends = max(found.streams, key=lambda s: s.end_optimized)
        en = (
            "move the dependency earlier"
            if late
            else "move the dependency later, or give up targets that do not matter"
        )
        zh = "前移依赖" if late else "后移依赖,或放弃不在关键路径上的目标"
        if late:
            en += f" (copies of {', '.join(e.target for e in late)} are late)"
            zh += f"({'、'.join(e.target for e in late)} 的拷贝到达太晚)"
        signals.append(
            Signal(
                "wait_moved",
                None,
                Text(
                    f"the target kernels are {faster:.1f} us faster in sum, but the step is not shorter: the wait only "
                    f"moved (stream {ends.name} ends last)",
                    f"目标算子合计快了 {faster:.1f} us,但关键路径没有缩短:等待只是换了位置(流 {ends.name} 最后结束)",
                ),
                Text(en, zh),
            )
        )
    if tails:
        signals.append(
            Signal(
                "new_tail",
                None,
                Text(f"new long tails: {'; '.join(tails)}", f"出现新的长拖尾:{';'.join(tails)}"),
                Text(
                    "change the dependency of the target that copies at that time, or give this position up",
                    "调整此时正在拷贝的目标的依赖节点,或放弃该位置",
                ),
            )
        )
    return signals


def _shrink(effect: Effect, setting: Setting, name: str, seen: Text) -> Signal:
    """The next smaller size of the spec, 0.5 -> 0.3 -> 0.1; below that give up."""
    now = _coefficient(setting)
    smaller = [s for s in SIZES if s < now]
    return _resize(effect, setting, name, seen, smaller[-1]) if smaller else _give_up(effect, name, seen)


def _grow(effect: Effect, setting: Setting, kernel: str) -> Signal | None:
    """The next larger size of the spec, 0.5 -> 0.7 -> 1.0."""
    larger = [s for s in SIZES if s > _coefficient(setting)]
    if not larger:
        return None
    seen = Text(
        f"the target is faster ({kernel}), its window is stable, the copy is in time: there is room",
        f"目标算子变快({kernel}),窗口稳定,拷贝及时到达:还有余量",
    )
    return _resize(effect, setting, "grow", seen, larger[0])


def _resize(effect: Effect, setting: Setting, name: str, seen: Text, to: Decimal) -> Signal:
    size = int(setting.theoretical_size * to)
    sizes = f"{approximate_size(setting.max_size)} -> {approximate_size(size)}"
    key = f"recipe.prefetch.targets.{effect.target}"
    if setting.coefficient is None:
        return Signal(
            name, effect.target, seen, Text(f"max_size {sizes}", f"max_size {sizes}"), f"{key}.max_size={size}"
        )
    words = f"coefficient {setting.coefficient} -> {to} ({sizes})"
    return Signal(
        name,
        effect.target,
        seen,
        Text(words, f"系数 {setting.coefficient} -> {to}({sizes})"),
        f"{key}.coefficient={to}",
    )


def _move(effect: Effect, setting: Setting, name: str, seen: Text, earlier: bool) -> Signal:
    """Another dependency; without one, give the target up."""
    to = setting.earlier() if earlier else setting.later()
    if to is None:
        return _give_up(effect, name, seen)
    way, wei = ("earlier", "前移") if earlier else ("later", "后移")
    return Signal(
        name,
        effect.target,
        seen,
        Text(f"move the dependency {way}, to `{to}`", f"依赖{wei}至 `{to}`"),
        f"'recipe.prefetch.targets.{effect.target}.dependency=\"{to}\"'",
    )


def _give_up(effect: Effect, name: str, seen: Text) -> Signal:
    return Signal(
        name,
        effect.target,
        seen,
        Text("give this target up", "放弃该目标"),
        f"~recipe.prefetch.targets.{effect.target}",
    )


def _coefficient(setting: Setting) -> Decimal:
    if setting.coefficient is not None:
        return setting.coefficient
    return Decimal(setting.max_size) / max(1, setting.theoretical_size)


def _value(figure: Figure | None) -> float:
    return figure.value if figure is not None else 0.0


def _points(figure: Figure | None, sign: int, unit: str) -> str:
    """`0.17 percentage points [-0.44, +0.39]`: a nominal value, whose band may well hold its opposite."""
    if figure is None:
        return f"0 {unit}"
    words = f"{sign * figure.value:.2f} {unit}"
    if figure.low is None or figure.high is None:
        return words
    low, high = sorted((sign * figure.low, sign * figure.high))
    return f"{words} [{low:+.2f}, {high:+.2f}]"


SIGNAL_ORDER: Mapping[str, int] = {
    name: rank
    for rank, name in enumerate(
        (
            "no_gain_window_slower",
            "new_tail",
            "wait_moved",
            "window_slower",
            "plan_better_without",
            "target_not_faster",
            "keep",
            "grow",
        )
    )
}
