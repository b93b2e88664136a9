"""The plots of a trial, as SVG: the step, the targets, and one layer on the time axis."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.workload import Workload
from pipeline.figures import Figure
from pipeline.record import Assessment, TargetResult
from pipeline.report import svg
from transforms.plan import Plan

if TYPE_CHECKING:
    from pipeline.simulator.forecast import Forecast
    from pipeline.simulator.simulate import StepResult

WORDS = {
    "en": {
        "step": "Decode step, us ({})",
        "gain": "Gain of the step, % of baseline ({})",
        "targets": "Time of one target kernel, us ({})",
        "layer": "Layer {} on the time axis, us ({})",
        "baseline": "baseline",
        "optimized": "optimised",
        "limit": "physical limit",
        "target": "target",
        "other": "other kernel",
        "copy": "prefetch copy",
        "modelled": "modelled",
        "measured": "measured",
        "band": "bar: nominal; line: 10-90 % band of all unknowns",
        "cmo": "CMO",
    },
    "zh": {
        "step": "单步 decode 耗时,us({})",
        "gain": "单步收益,占 baseline 的 %({})",
        "targets": "单个目标算子耗时,us({})",
        "layer": "第 {} 层时间轴,us({})",
        "baseline": "baseline",
        "optimized": "优化后",
        "limit": "物理极限",
        "target": "目标算子",
        "other": "其他算子",
        "copy": "预取拷贝",
        "modelled": "模型推算",
        "measured": "实测",
        "band": "条形:名义值;线:全部未知量的 10-90 % 区间",
        "cmo": "CMO",
    },
}


def step_plot(found: Assessment, language: str = "en") -> str:
    """Baseline, optimised and physical limit with bands, and the paired gain below."""
    words = WORDS[language]
    metrics = found.metrics
    before, after, limit = metrics["baseline.step"], metrics["optimized.step"], metrics["physical_limit"]
    gain = metrics["delta.step"]
    chart = svg.Svg(720, 250)
    chart.text(12, 22, words["step"].format(words[before.provenance]), 14, bold=True)
    left, width = 110.0, 500.0
    top = max(f.high if f.high is not None else f.value for f in (before, after, limit)) * 1.02
    scale = width / top
    rows = (
        (words["baseline"], before, svg.BASELINE),
        (words["optimized"], after, svg.OPTIMIZED),
        (words["limit"], limit, svg.OTHER),
    )
    for value in svg.ticks(top):
        x = left + value * scale
        chart.line(x, 34, x, 124, svg.FAINT)
        chart.text(x, 138, f"{value:,.0f}", 10, "middle")
    for row, (name, figure, colour) in enumerate(rows):
        y = 40.0 + 28 * row
        chart.text(left - 8, y + 15, name, 12, "end")
        chart.rect(left, y, figure.value * scale, 20, colour)
        _whisker(chart, left, scale, y + 10, figure)
        end = max(figure.value, figure.high or 0.0)
        chart.text(left + end * scale + 6, y + 15, f"{figure.value:,.0f}", 12)
    chart.text(12, 168, words["gain"].format(words[gain.provenance]), 14, bold=True)
    low = min(0.0, gain.value, gain.low if gain.low is not None else 0.0)
    high = max(0.0, gain.value, gain.high if gain.high is not None else 0.0)
    span = (high - low) or 1.0
    low, high = low - 0.08 * span, high + 0.08 * span
    scale = width / (high - low)
    zero = left - low * scale
    colour = svg.TARGET if gain.value > 0 else svg.COPY
    chart.rect(min(zero, zero + gain.value * scale), 180, abs(gain.value) * scale, 20, colour)
    _whisker(chart, zero, scale, 190, gain)
    chart.line(zero, 174, zero, 208, svg.INK, 1.5)
    chart.text(zero, 222, "0", 10, "middle")
    text = f"{gain.value:+.2f} %"
    if gain.low is not None and gain.high is not None:
        text += f" [{gain.low:+.2f}, {gain.high:+.2f}]"
    chart.text(left + width + 2, 168, text, 12, "end", bold=True)
    chart.text(12, 242, words["band"], 10, fill="#52606d")
    return chart.render()


def targets_plot(found: Assessment, language: str = "en") -> str:
    """Each target's kernel before and after; targets that are read by the same kernels share a row."""
    words = WORDS[language]
    rows: dict[tuple[str, int, float, float], list[TargetResult]] = {}
    for target in found.targets:
        rows.setdefault((target.op, target.count, target.baseline.value, target.optimized.value), []).append(target)
    targets = [same[0] for same in rows.values()]
    names = [", ".join(t.name for t in same) for same in rows.values()]
    provenance = targets[0].baseline.provenance if targets else "modelled"
    height = 40.0 * len(targets)
    chart = svg.Svg(720, 84 + height)
    chart.text(12, 22, words["targets"].format(words[provenance]), 14, bold=True)
    _legend(chart, 430, 18, ((words["baseline"], svg.BASELINE), (words["optimized"], svg.OPTIMIZED)))
    left, width = 200.0, 420.0
    top = max((max(t.baseline.value, t.optimized.value) for t in targets), default=1.0) * 1.02
    scale = width / top
    for value in svg.ticks(top):
        x = left + value * scale
        chart.line(x, 36, x, 44 + height, svg.FAINT)
        chart.text(x, 58 + height, f"{value:g}", 10, "middle")
    for row, (name, target) in enumerate(zip(names, targets, strict=True)):
        y = 42.0 + 40 * row
        chart.text(left - 8, y + 13, name, 12, "end")
        chart.text(left - 8, y + 27, f"{target.op} x {target.count}", 10, "end", "#52606d")
        chart.rect(left, y, target.baseline.value * scale, 14, svg.BASELINE)
        chart.rect(left, y + 15, target.optimized.value * scale, 14, svg.OPTIMIZED)
        end = max(target.baseline.value, target.optimized.value)
        words_ = f"{target.baseline.value:.1f} -> {target.optimized.value:.1f}"
        chart.text(left + end * scale + 6, y + 19, words_, 11)
    return chart.render()


def layer_plot(workload: Workload, plan: Plan, forecast: "Forecast", language: str = "en") -> str:
    """One layer in the middle of the model: streams and the copy chain, baseline above, optimised below."""
    words = WORDS[language]
    layer = workload.layers // 2
    inside = [k for k in workload.kernels if k.layer == layer] or list(workload.kernels)
    streams = list(dict.fromkeys(k.stream for k in inside))
    planned = {p.weight for p in plan.prefetch}
    steps = ((words["baseline"], forecast.baseline_step), (words["optimized"], forecast.optimised_step))
    lanes = [len(streams), len(streams) + 1]
    chart = svg.Svg(1000, 96 + 26 * sum(lanes) + 30)
    chart.text(12, 22, words["layer"].format(layer, words["modelled"]), 14, bold=True)
    legend = ((words["target"], svg.TARGET), (words["other"], svg.OTHER), (words["copy"], svg.COPY))
    _legend(chart, 560, 18, legend)
    left, width = 150.0, 830.0
    spans = [_span(step, [k.index for k in inside]) for _, step in steps]
    length = max(end - start for start, end in spans)
    scale = width / (length or 1.0)
    bottom = 60.0 + 26 * sum(lanes) + 14
    for value in svg.ticks(length, 8):
        x = left + value * scale
        chart.line(x, 36, x, bottom, svg.FAINT)
        chart.text(x, bottom + 14, f"{value:g}", 10, "middle")
    y = 44.0
    for (name, step), (start, end), lane_count in zip(steps, spans, lanes, strict=True):
        chart.text(12, y + 13, name, 12, bold=True)
        for row, stream in enumerate(streams):
            lane = y + 26 * row
            chart.text(left - 8, lane + 14, stream, 11, "end")
            for kernel in inside:
                if kernel.stream != stream or kernel.engine == "idle":
                    continue
                begin, finish = step.starts[kernel.index], step.ends[kernel.index]
                target = any(w.weight in planned for w in kernel.weights)
                tip = f"{kernel.op} {kernel.module}: {finish - begin:.1f} us"
                x = left + (begin - start) * scale
                chart.rect(x, lane, (finish - begin) * scale - 0.4, 20, svg.TARGET if target else svg.OTHER, tip)
        if lane_count > len(streams):
            lane = y + 26 * len(streams)
            chart.text(left - 8, lane + 14, words["cmo"], 11, "end")
            for entry, copy in zip(plan.prefetch, step.copies, strict=True):
                begin, finish = max(copy.start, start), min(copy.end, end)
                if finish > begin:
                    tip = f"{entry.target} {entry.weight}: {copy.end - copy.start:.1f} us, {copy.moved / 2**20:.2f} MiB"
                    chart.rect(left + (begin - start) * scale, lane, (finish - begin) * scale - 0.4, 20, svg.COPY, tip)
        chart.line(left + (end - start) * scale, y - 3, left + (end - start) * scale, y + 26 * lane_count - 3, svg.INK)
        y += 26 * lane_count + 14
    return chart.render()


def _whisker(chart: svg.Svg, zero: float, scale: float, y: float, figure: Figure) -> None:
    if figure.low is None or figure.high is None or figure.low == figure.high:
        return
    low, high = zero + figure.low * scale, zero + figure.high * scale
    chart.line(low, y, high, y, svg.INK, 1.4)
    for x in (low, high):
        chart.line(x, y - 5, x, y + 5, svg.INK, 1.4)


def _legend(chart: svg.Svg, x: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
    for name, colour in entries:
        chart.rect(x, y - 9, 11, 11, colour)
        chart.text(x + 16, y + 1, name, 11)
        x += 36 + 7.2 * len(name) + (6 * sum(ord(c) > 0x2E80 for c in name))


def _span(step: "StepResult", kernels: Sequence[int]) -> tuple[float, float]:
    return min(step.starts[k] for k in kernels), max(step.ends[k] for k in kernels)
