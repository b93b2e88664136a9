"""What a trial leaves behind for people: the report, plots, the timeline and the NPU script."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from models.workload import Workload
from pipeline.outputs import write_text
from pipeline.record import TrialRecord
from pipeline.report.markdown import markdown, superkernel_markdown
from pipeline.report.npu_script import NAME as NPU_SCRIPT
from pipeline.report.npu_script import npu_script
from pipeline.report.plots import layer_plot, step_plot, targets_plot
from pipeline.report.timeline import timeline
from pipeline.windows import placements_of

if TYPE_CHECKING:
    from pipeline.simulator.forecast import Forecast

__all__ = [
    "layer_plot",
    "markdown",
    "npu_script",
    "report_files",
    "step_plot",
    "targets_plot",
    "timeline",
    "write_report",
]


def report_files(
    record: TrialRecord, workload: Workload | None = None, forecast: "Forecast | None" = None
) -> dict[str, str]:
    """All files of a trial that this package makes: path below the output directory -> text.

    Args:
        record: the whole trial.
        workload, forecast: for the timeline and the plot of a layer; without them these two are left out.
    """
    files = {"report.md": markdown(record), NPU_SCRIPT: npu_script(record)}
    superkernel = superkernel_markdown(record, date.today())
    if superkernel is not None:
        files["superkernel_optimization_report.md"] = superkernel
    found = record.assessment
    if found is not None:
        files["plots/step.svg"] = step_plot(found, record.language)
        files["plots/targets.svg"] = targets_plot(found, record.language)
        if workload is not None and forecast is not None:
            places = placements_of(record.plan, workload)
            files["plots/layer.svg"] = layer_plot(workload, record.plan, forecast, record.language)
            files["timeline.json"] = timeline(workload, record.plan, places, forecast)
    return files


def write_report(
    directory: Path, record: TrialRecord, workload: Workload | None = None, forecast: "Forecast | None" = None
) -> None:
    """Write `report_files` into a trial's directory.

    Raises:
        OSError: the directory cannot be written.
    """
    for name, text in report_files(record, workload, forecast).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
