"""The standalone comparison script of a trial: `run_on_npu.py` with this trial's settings in it."""

import re
from functools import cache
from importlib.resources import files
from pprint import pformat

from pipeline.record import TrialRecord

NAME = "run_on_npu.py"
_SETTINGS = re.compile(r"^SETTINGS: dict\[str, Any\] = \{.*?\}\n", re.MULTILINE | re.DOTALL)


def npu_script(record: TrialRecord) -> str:
    """The script's text; it needs torch and torch_npu, and nothing of ours.

    Args:
        record: gives title, plan hash, execution mode, targets and the forecast that the script prints beside what it
            measures.
    """
    found = record.assessment
    gain = found.metrics.get("delta.step") if found else None
    settings = {
        "title": f"{record.plan.recipe} on {record.plan.model}",
        "plan_hash": record.plan.hash,
        "mode": record.plan.exe_mode,
        "targets": [{"name": t.name, "op": t.op, "max_size": t.max_size} for t in found.targets] if found else [],
        "modelled": {"value": gain.value, "low": gain.low, "high": gain.high, "unit": gain.unit} if gain else None,
    }
    text = f"SETTINGS: dict[str, Any] = {pformat(settings, width=110, sort_dicts=False)}\n"
    return _SETTINGS.sub(lambda _: text, _template(), count=1)


@cache
def _template() -> str:
    return files("pipeline.report").joinpath(NAME).read_text(encoding="utf-8")
