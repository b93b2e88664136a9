"""The report of `analyze`: report.md in English or Chinese, and a roofline per phase."""

from typing import TYPE_CHECKING

from pipeline.analysis.operators import operator_table
from pipeline.analysis.remarks import remark_zh
from pipeline.analysis.words import LIMITED, REASONS
from pipeline.analyze_view import bytes_text, place, short_shapes
from pipeline.figures import band_text
from pipeline.findings_view import alone_rows, mapping_line, moved_lines, replay_line, sizes_of, together_lines
from pipeline.progress import shown
from pipeline.replay.findings import scope_lines
from pipeline.report.roofline_plot import roofline_plot
from pipeline.report.templates import profile_templates
from pipeline.sizes_text import approximate_size

if TYPE_CHECKING:
    from jinja2 import Environment

    from pipeline.analyze import AnalyzeResult

_ZH = {
    "decode": "decode", "prefill": "prefill", "training": "训练", "unknown": "未知",
    "memory": "访存", "compute": "计算", "vector": "向量", "scalar": "标量", "launch": "启动", "communication": "通信",
    "high": "高", "low": "低", "step_id": "Step Id", "repetition": "算子序列的重复", "none": "未找到",
}  # fmt: skip


def analysis_files(result: "AnalyzeResult") -> dict[str, str]:
    """Path below the output directory -> text."""
    files = {"report.md": analysis_markdown(result)}
    for phase in result.analysis.phases:
        files[f"plots/roofline_{phase.name}.svg"] = roofline_plot(phase, result.machine, result.language)
    return files


def analysis_markdown(result: "AnalyzeResult") -> str:
    """report.md; a function of the result alone."""
    language = result.language
    environment = profile_templates(
        size=approximate_size,
        place=lambda kernel: place(kernel) if language == "en" else place(kernel).replace(", stream ", "，流 "),
        shapes=short_shapes,
        bytes=lambda spot: bytes_text(spot).replace("\n", " "),
        percent=lambda share, digits=1: "-" if share is None else f"{100 * share:.{digits}f}",
        mib=lambda size: f"{(size or 0) / (1 << 20):.1f}",
        reason=lambda code: REASONS[code][language],
        limited=lambda code: LIMITED[code][language],
        band=lambda figure: band_text(figure).replace(" %", ""),
        remark=remark_zh,
        word=lambda w: _ZH.get(w, w) if language == "zh" else w.replace("_", " "),
    )
    return environment.get_template(f"analysis.{language}.md.j2").render(
        r=result,
        a=result.analysis,
        source=shown(result.profile.source),
        table=operator_table(),
        forecast="" if result.findings is None else _forecast(environment, result),
    )


def _forecast(environment: "Environment", result: "AnalyzeResult") -> str:
    found = result.findings
    assert found is not None
    return environment.get_template(f"forecast.{result.language}.md.j2").render(
        f=found,
        a=result.analysis,
        replay=replay_line(found),
        mapping=mapping_line(found) if found.measured.mapping is not None else "",
        sizes=sizes_of(found),
        rows=alone_rows(found),
        moved=moved_lines(found),
        together=together_lines(found),
        scopes=scope_lines(found.scoped),
    )
