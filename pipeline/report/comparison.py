"""The report of `compare`: report.md in English or Chinese, and one plot."""

from typing import TYPE_CHECKING

from pipeline.analysis.remarks import remark_zh
from pipeline.comparison.words import gain_text, spread, two
from pipeline.figures import Figure, written
from pipeline.progress import shown
from pipeline.report import svg
from pipeline.report.plots import WORDS
from pipeline.report.templates import profile_templates

if TYPE_CHECKING:
    from pipeline.compare import CompareResult
    from pipeline.comparison.changes import Change, TargetChange

_OUTCOME = {
    "improved": "变快", "degraded": "变慢", "no_significant_difference": "没有显著差异", "undecided": "无法判断",
}  # fmt: skip
_ROWS = {
    "step": ("step, first start to last end", "单步（首个开始到最后结束）"),
    "busy": ("some kernel runs (union)", "有算子运行（区间并集）"),
    "idle": ("no kernel runs", "没有算子运行"),
    "target_sum": ("target kernels, sum", "目标算子合计"),
    "windows": ("kernels before the targets, sum", "目标之前的算子合计"),
    "steady": ("kernels that do not wait for memory, sum", "不受访存限制的算子合计"),
    "copies": ("copies, where the profile has them", "拷贝（profile 中有记录时）"),
}
_PLOT = {
    "en": (
        "Change, % of baseline, positive = faster ({}); line: 95 % interval over steps",
        "two separate runs: drift is in no interval",
    ),
    "zh": (
        "变化，占 baseline 的 %，正值为变快（{}）；线：按步的 95 % 区间",
        "两次运行相互独立：漂移不在区间内",
    ),
}
_BARS = 12  # targets in the plot


def comparison_files(result: "CompareResult") -> dict[str, str]:
    """Path below the output directory -> text."""
    return {"report.md": comparison_markdown(result), "plots/comparison.svg": comparison_plot(result)}


def comparison_markdown(result: "CompareResult") -> str:
    """report.md; a function of the result alone."""
    environment = profile_templates(
        spread=spread,
        two=two,
        gain=gain_text,
        delta=lambda change: written(change.delta_us, 1, sign=True),
        value=lambda figure: "-" if figure is None else written(figure.value),
        rates=_rates,
        remark=remark_zh,
    )
    return environment.get_template(f"comparison.{result.language}.md.j2").render(
        r=result,
        v=result.verdict,
        found=result.found,
        before=result.before,
        after=result.after,
        rows=_rows(result),
        outcome=_OUTCOME,
        source={"before": shown(result.before.profile.source), "after": shown(result.after.profile.source)},
    )


def comparison_plot(result: "CompareResult") -> str:
    """Changes with their intervals: the step, sums of targets and windows, then each target."""
    words, (title, caveat) = WORDS[result.language], _PLOT[result.language]
    rows: list[tuple[str, Figure]] = [
        (name, change.faster)
        for (name, change), key in zip(_rows(result), _keys(result), strict=True)
        if key in ("step", "busy", "target_sum", "windows", "steady") and change.faster is not None
    ]
    rows += [(t.label, t.faster) for t in result.found.targets[:_BARS] if t.faster is not None]
    height = 24.0 * len(rows)
    chart = svg.Svg(820, 84 + height)
    chart.text(12, 22, title.format(words["measured"]), 13, bold=True)
    ends = [0.0, *(v for _, f in rows for v in (f.value, f.low, f.high) if v is not None)]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0
    low, high = low - 0.05 * span, high + 0.05 * span
    left, width = 290.0, 350.0
    scale = width / (high - low)
    zero = left - low * scale
    for row, (name, figure) in enumerate(rows):
        y = 40.0 + 24 * row
        chart.text(left - 10, y + 12, name, 11, "end")
        x = zero + figure.value * scale
        if figure.low is not None and figure.high is not None:
            sure = figure.low > 0 or figure.high < 0
            colour = svg.BASELINE if not sure else svg.TARGET if figure.value > 0 else svg.COPY
            chart.line(zero + figure.low * scale, y + 8, zero + figure.high * scale, y + 8, colour, 2.5)
        else:
            colour = svg.BASELINE
        chart.circle(x, y + 8, 4, colour, f"{name}: {gain_text(figure)}")
        chart.text(left + width + 10, y + 12, gain_text(figure), 11)
    chart.line(zero, 34, zero, 44 + height, svg.INK, 1.2)
    chart.text(zero, 58 + height, "0", 10, "middle")
    chart.text(12, 76 + height, caveat, 10, fill="#52606d")
    return chart.render()


def _keys(result: "CompareResult") -> list[str]:
    return [key for key in _ROWS if getattr(result.found, key) is not None]


def _rows(result: "CompareResult") -> "list[tuple[str, Change]]":
    chinese = result.language == "zh"
    return [(_ROWS[key][chinese], getattr(result.found, key)) for key in _keys(result)]


def _rates(target: "TargetChange") -> str:
    if target.gb_s_before is None or target.gb_s_after is None:
        return "-"
    return f"{written(target.gb_s_before, 0)} -> {written(target.gb_s_after, 0)}"
