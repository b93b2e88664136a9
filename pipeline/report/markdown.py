"""report.md from a trial's record, in English or Chinese."""

from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.figures import Figure, written
from pipeline.fusable import why_not_zh
from pipeline.record import TrialRecord
from pipeline.report.templates import cell

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
    plan = record.plan
    verdict = record.verdict
    lines = record.diff.splitlines()
    numerics = record.verification.get("numerics")
    return _template(record.language).render(
        plan=plan,
        levers=" + ".join(
            [*(["Prefetch"] if plan.prefetch or not plan.scopes else []), *(["SuperKernel"] * bool(plan.scopes))]
        ),
        sk=found.superkernel if found else None,
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


def superkernel_markdown(record: TrialRecord, today: date) -> str | None:
    """The report on SuperKernel by itself; None if the trial has no scopes, or no figures.

    Args:
        record: the trial.
        today: the date in the report.
    """
    found = record.assessment
    if found is None or found.superkernel is None:
        return None
    metrics = found.metrics
    verdict = record.verdict
    return _template(record.language, "superkernel").render(
        plan=record.plan,
        sk=found.superkernel,
        m=metrics,
        ms={name: _scaled(metrics[name], 1e-3, "ms") for name in ("baseline.step", "optimized.step")},
        throughput=_throughput_gain(metrics["delta.step"]),
        options=list(dict.fromkeys(s.options for s in found.superkernel.scopes)),
        waived=_waived(record),
        verdict=verdict,
        modelled=verdict.provenance == "modelled",
        signals=[s for s in verdict.signals if s.id in ("scope_slower", "lever_hinders")],
        verification=record.verification,
        changed_files=record.changed_files,
        transform=record.transform,
        deployment=_name(record, "deployment"),
        hardware=_name(record, "hardware"),
        rerun=record.rerun,
        date=today.isoformat(),
    )


def _waived(record: TrialRecord) -> tuple[Any, ...]:
    """Preconditions that hold only because the recipe allows them."""
    from pipeline.preconditions import waived

    recipe: Any = record.config.get("recipe") or {}
    allow = (recipe.get("superkernel") or {}).get("allow") or ()
    hardware: Any = record.config.get("hardware") or {}
    names = [allow] if isinstance(allow, str) else allow
    return waived(names, record.plan.exe_mode, str(hardware.get("generation", "")))


def _scaled(figure: Figure, factor: float, unit: str) -> Figure:
    low, high = (None if v is None else v * factor for v in (figure.low, figure.high))
    return Figure(figure.value * factor, unit, low, high, figure.provenance)


def _throughput_gain(gain: Figure) -> Figure:
    """A step that gets g % shorter brings 100 g / (100 - g) % more tokens."""

    def more(g: float | None) -> float | None:
        return None if g is None else 100.0 * g / (100.0 - g) if g < 100.0 else 0.0

    return Figure(more(gain.value) or 0.0, "%", more(gain.low), more(gain.high), gain.provenance)


@cache
def _template(language: str, name: str = "report") -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pipeline", "report"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
    )
    environment.filters.update(
        num=_num, band=_band, cell=cell, words=_words, words_zh=lambda w: _ZH.get(w, w), why_zh=why_not_zh
    )
    return environment.get_template(f"{name}.{language}.md.j2")


def _num(figure: Figure | None, digits: int = 1, sign: bool = False) -> str:
    """`1,234.5`, or a dash if there is no figure."""
    if figure is None:
        return "-"
    return written(figure.value, digits, sign)


def _band(figure: Figure | None, digits: int = 1, sign: bool = False) -> str:
    """`12.3 [11.0, 14.0]`; without brackets if there is no band."""
    if figure is None or figure.low is None or figure.high is None:
        return _num(figure, digits, sign)
    low, high = (_num(Figure(v, figure.unit), digits, sign) for v in (figure.low, figure.high))
    return f"{_num(figure, digits, sign)} [{low}, {high}]"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _name(record: TrialRecord, group: str) -> str:
    part: Any = record.config.get(group)
    return str(part.get("name") or "-") if hasattr(part, "get") else str(part or "-")
