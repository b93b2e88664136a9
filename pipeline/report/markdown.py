"""report.md from a trial's record, in English or Chinese."""

from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.figures import Figure
from pipeline.record import TrialRecord

if TYPE_CHECKING:
    from jinja2 import Template

_ZH = {
    "improved": "有提升",
    "undecided": "无法确定",
    "worse": "变差",
    "no_significant_difference": "无显著差异",
    "degraded": "变差",
    "failed": "失败",
    "not_run": "未执行",
    "passed": "通过",
    "could_not_check": "无法检查",
}


def markdown(record: TrialRecord) -> str:
    """The report of one trial; `record.language` decides the language.

    It is a function of the record alone: no dates, no wall times, so that a rerun gives the same text.
    """
    found = record.assessment
    verdict = record.verdict
    lines = record.diff.splitlines()
    numerics = record.verification.get("numerics")
    return _template(record.language).render(
        plan=record.plan,
        found=found,
        m=found.metrics if found else {},
        targets=found.targets if found else [],
        hotspots=found.hotspots if found else [],
        checklist=found.checklist if found else [],
        verdict=verdict,
        failures=[s for s in verdict.signals if s.id != "grow"],
        growing=[s for s in verdict.signals if s.id == "grow"],
        modelled=verdict.provenance == "modelled",
        numerics_passed=numerics is not None and numerics.status == "passed",
        verification=record.verification,
        calls_planned=record.calls_planned,
        calls_observed=record.calls_observed,
        deployment=_name(record, "deployment"),
        hardware=_name(record, "hardware"),
        overrides=record.overrides,
        reused=record.reused,
        problems=record.problems,
        diff=record.diff,
        changed_files=record.changed_files,
        added=sum(line.startswith("+") and not line.startswith("+++") for line in lines),
        removed=sum(line.startswith("-") and not line.startswith("---") for line in lines),
        transform=record.transform,
        rerun=record.rerun,
        output_dir=record.output_dir,
    )


@cache
def _template(language: str) -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pipeline", "report"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
    )
    environment.filters.update(num=_num, band=_band, cell=_cell, words=_words, words_zh=lambda w: _ZH.get(w, w))
    return environment.get_template(f"report.{language}.md.j2")


def _num(figure: Figure | None, digits: int = 1, sign: bool = False) -> str:
    """`1,234.5`, or a dash if there is no figure."""
    if figure is None:
        return "-"
    text = format(figure.value, f"{'+' if sign else ''},.{digits}f")
    # A rounding residue is no change.
    return text.lstrip("+-") if not any(c in "123456789" for c in text) else text


def _band(figure: Figure | None, digits: int = 1, sign: bool = False) -> str:
    """`12.3 [11.0, 14.0]`; without brackets if there is no band."""
    if figure is None or figure.low is None or figure.high is None:
        return _num(figure, digits, sign)
    low, high = (_num(Figure(v, figure.unit), digits, sign) for v in (figure.low, figure.high))
    return f"{_num(figure, digits, sign)} [{low}, {high}]"


def _cell(text: str) -> str:
    """Safe inside a table's cell."""
    return " ".join(str(text).split()).replace("|", "\\|")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _name(record: TrialRecord, group: str) -> str:
    part: Any = record.config.get(group)
    return str(part.get("name") or "-") if hasattr(part, "get") else str(part or "-")
