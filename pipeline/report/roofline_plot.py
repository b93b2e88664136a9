"""The roofline as SVG: achieved FLOPS over FLOPs per byte, both logarithmic, one circle per group of equal kernels."""

import math
from typing import TYPE_CHECKING

from pipeline.analysis.results import Hotspot, PhaseAnalysis
from pipeline.figures import written
from pipeline.report.svg import FAINT, INK, Svg

if TYPE_CHECKING:
    from pipeline.simulator.machine import Machine

COLOURS = {"memory": "#e08214", "compute": "#1f77b4", "launch": "#9aa5b1", "scalar": "#7b3294", "vector": "#2a9d5c"}
_NAMES = {
    "en": {
        "x": "FLOPs per byte (from shapes)",
        "y": "TFLOPS achieved",
        "hbm": "HBM peak {0} TB/s",
        "title": "Roofline, {0}: area = time in the step",
    },
    "zh": {
        "x": "每字节 FLOPs（由 shape 计算）",
        "y": "实际 TFLOPS",
        "hbm": "HBM 峰值 {0} TB/s",
        "title": "Roofline，{0}：面积 = 步内耗时",
        "memory": "访存",
        "compute": "计算",
        "launch": "启动",
        "scalar": "标量",
        "vector": "向量",
        "unknown": "未知",
        "training": "训练",
    },
}
_LEFT, _TOP, _WIDTH, _HEIGHT = 70, 60, 720, 420


def roofline_plot(phase: PhaseAnalysis, machine: "Machine", language: str = "en") -> str:
    """The plot of one phase; groups without FLOPs (vector kernels, attention) are not in it.

    Args:
        phase: measured times, bytes and FLOPs from shapes.
        machine: for the roofs: HBM peak, and the nominal peaks of the types that occur.
        language: `en` or `zh`.
    """
    words = _NAMES[language]
    spots = [s for s in phase.hotspots if s.flops and s.bytes and s.tflops]
    nominal = machine.nominal()
    types = sorted({s.compute for s in spots}) or ["bf16"]
    peaks = {name: nominal[f"peak_{name}"] / 1e6 for name in types}
    chart = Svg(_LEFT + _WIDTH + 150, _TOP + _HEIGHT + 60)
    axes = _Axes(spots, machine.hbm_peak / 1e6, max(peaks.values()))
    chart.text(_LEFT, 22, words["title"].format(words.get(phase.name, phase.name)), 14, bold=True)
    axes.draw(chart, words)
    for name, peak in peaks.items():
        knee = peak / (machine.hbm_peak / 1e6)
        chart.line(*axes.at(knee, peak), axes.right, axes.at(knee, peak)[1], INK, 1.6)
        chart.text(axes.right + 6, axes.at(knee, peak)[1] + 4, f"{name.upper()} {written(peak, 0)} TFLOPS", 11)
    top = max(peaks.values())
    slope = machine.hbm_peak / 1e6
    chart.line(*axes.at(axes.x_low, axes.x_low * slope), *axes.at(top / slope, top), INK, 1.6)
    x, y = axes.at(top / slope, top)  # left of the knee, above the roof: hardly any kernel is there
    chart.text(x - 16, y - 4, words["hbm"].format(written(machine.hbm_peak / 1e6, 1)), 11, "end")
    most = max((s.time_us for s in spots), default=1.0)
    for spot in sorted(spots, key=lambda s: -s.time_us):
        x, y = axes.at(_intensity(spot), spot.tflops or 0.0)
        size = 4 + 14 * math.sqrt(spot.time_us / most)
        tip = (
            f"{spot.op_type} {spot.shapes}: {written(spot.gb_s or 0, 0)} GB/s, {written(spot.tflops or 0, 1)} TFLOPS, "
            f"{spot.calls} x {written(spot.each_us, 2)} us"
        )
        chart.circle(x, y, size, COLOURS.get(spot.kernel_class, FAINT), tip)
    x = float(_LEFT)
    for name in sorted({s.kernel_class for s in spots}):
        chart.circle(x + 6, _TOP + _HEIGHT + 48, 5, COLOURS.get(name, FAINT))
        chart.text(x + 16, _TOP + _HEIGHT + 52, words.get(name, name), 11)
        x += 40 + 8 * len(name)
    return chart.render()


def _intensity(spot: Hotspot) -> float:
    return (spot.flops or 0.0) / (spot.bytes or 1.0)


class _Axes:
    """Logarithmic axes that hold all points and the roofs."""

    def __init__(self, spots: list[Hotspot], slope: float, peak: float) -> None:
        xs = [_intensity(s) for s in spots] + [peak / slope]
        self.x_low, self.x_high = _decade(min(xs), -1), _decade(2 * max(xs), 1)
        ys = [s.tflops or 1.0 for s in spots] + [self.x_low * slope]
        self.y_low, self.y_high = _decade(min(ys), -1), _decade(1.2 * peak, 1)
        self.right = _LEFT + _WIDTH

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point."""
        along = math.log10(x / self.x_low) / math.log10(self.x_high / self.x_low)
        up = math.log10(y / self.y_low) / math.log10(self.y_high / self.y_low)
        return _LEFT + _WIDTH * along, _TOP + _HEIGHT * (1 - up)

    def draw(self, chart: Svg, words: dict[str, str]) -> None:
        value = self.x_low
        while value <= self.x_high * 1.001:
            x = self.at(value, self.y_low)[0]
            chart.line(x, _TOP, x, _TOP + _HEIGHT, FAINT)
            chart.text(x, _TOP + _HEIGHT + 16, f"{value:g}", 11, "middle")
            value *= 10
        value = self.y_low
        while value <= self.y_high * 1.001:
            y = self.at(self.x_low, value)[1]
            chart.line(_LEFT, y, self.right, y, FAINT)
            chart.text(_LEFT - 6, y + 4, f"{value:g}", 11, "end")
            value *= 10
        chart.text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 33, words["x"], 12, "middle")
        chart.text(8, _TOP - 8, words["y"], 12)


def _decade(value: float, way: int) -> float:
    exponent = math.log10(value)
    return 10.0 ** (math.floor(exponent) if way < 0 else math.ceil(exponent))
