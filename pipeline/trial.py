"""One trial: transform, verify, forecast, judge, and write its directory."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.experiment import Prepared
from pipeline.memo import MEMO, fingerprint
from pipeline.outputs import write_json, write_text
from pipeline.record import Assessment, Rung, TrialRecord

if TYPE_CHECKING:
    from models.loading import LoadedModel
    from pipeline.simulator import Forecast
    from pipeline.verify import Build
    from transforms.prefetch_source import SourceResult

GRAPH_NOT_RUN = Rung(
    "not_run",
    "this version does not lower through the NPU compiler's front end; whether the graph is legal was not checked",
    "本版本不经过 NPU 编译器前端,图的合法性未检查",
)


class StageError(RuntimeError):
    """A trial crashed; `stage` says where, `__cause__` why."""

    def __init__(self, stage: str, cause: BaseException) -> None:
        super().__init__(f"{stage}: {type(cause).__name__}: {cause}")
        self.stage = stage


def run_trial(
    prepared: Prepared, directory: Path, command: Sequence[str] = (), key: str = "", typed: Sequence[str] = ()
) -> TrialRecord:
    """Run one trial and write its files into `directory`.

    Args:
        prepared: from `experiment.prepare`.
        directory: exists, and is empty but for what the caller keeps there.
        command: words of the command that runs this trial alone again.
        key: the trial key.
        typed: the overrides as a user typed them.

    Raises:
        StageError: a stage crashed. A failed rung is no crash: it is in the record.
    """
    experiment, plan = prepared.experiment, prepared.resolution.plan
    seconds: dict[str, float] = {}
    MEMO.take_reused()
    with _stage("transform", seconds):
        write_json(directory / "plan.json", plan.to_json())
        source = make_source(prepared) if experiment.transform == "source" else None
        if source is not None:
            write_text(directory / "patch.diff", source.diff)
    with _stage("verify", seconds):
        rungs, planned, observed = _verify(prepared, source, directory / "transformed")
    with _stage("forecast", seconds):
        assessment, forecast = _assess(prepared, rungs["numerics"])
        rungs["performance"] = _performance(assessment)
    record = TrialRecord(
        key=key or directory.name,
        output_dir=str(directory),
        status="failed" if any(r.status in ("failed", "could_not_check") for r in rungs.values()) else "ok",
        config=experiment.config,
        overrides=list(typed),
        plan=plan,
        matches=prepared.resolution.matches,
        problems=prepared.problems,
        verification=rungs,
        calls_planned=planned,
        calls_observed=observed,
        assessment=assessment,
        diff=source.diff if source else "",
        changed_files=[source_name(prepared)] if source else [],
        reused=MEMO.take_reused(),
        rerun=" ".join(command),
        language="zh" if experiment.language == "zh" else "en",
        transform=experiment.transform,
        seconds=seconds,
    )
    with _stage("report", seconds):
        _write(directory, record, prepared, forecast)
    return record


def make_source(prepared: Prepared) -> "SourceResult":
    """The plan written into the model's source; nothing is written to disk.

    Raises:
        RefusedError: some entry can't be written; holds every reason.
    """
    from transforms.prefetch_source import prefetch_source
    from transforms.recording import record

    tiny = prepared.tiny
    recording = MEMO.get("recorded calls of a tiny decode step", prepared.experiment.model_key, lambda: record(tiny))
    return prefetch_source(tiny, prepared.tiny_resolution.plan, recording)


def source_name(prepared: Prepared) -> str:
    """The modeling file as the diff names it, relative to the folder above its package."""
    return prepared.tiny.python_module.__name__.replace(".", "/") + ".py"


def _verify(
    prepared: Prepared, source: "SourceResult | None", directory: Path
) -> tuple[dict[str, Rung], int | None, int | None]:
    """The rungs below performance, and the calls planned and observed."""
    from pipeline.verify import baseline_run, check_compiles, check_numerics

    experiment, tiny = prepared.experiment, prepared.tiny
    rungs = {
        "compiles": Rung("not_run", "verify.compiles=false"),
        "numerics": Rung("not_run", "verify.numerics=false"),
        "graph": GRAPH_NOT_RUN,
    }
    if experiment.wants("graph") is True:
        rungs["graph"] = Rung("could_not_check", GRAPH_NOT_RUN.detail, GRAPH_NOT_RUN.zh)
    plan = prepared.tiny_resolution.plan
    build = _builder(tiny, prepared, source, directory)
    if experiment.wants("compiles"):
        rungs["compiles"] = check_compiles(tiny, build, {source_name(prepared): source.after} if source else None)
    if not experiment.wants("numerics"):
        return rungs, len(plan.prefetch), None
    if rungs["compiles"].status == "failed":
        rungs["numerics"] = Rung("not_run", "the transformed model does not run")
        return rungs, len(plan.prefetch), None
    baseline = MEMO.get("baseline outputs of the tiny model", experiment.model_key, lambda: baseline_run(tiny))
    rungs["numerics"], planned, observed = check_numerics(tiny, plan, build, baseline)
    return rungs, planned, observed


def _builder(tiny: "LoadedModel", prepared: Prepared, source: "SourceResult | None", directory: Path) -> "Build":
    """How the rungs get the transformed model, switch on or off."""
    if source is None:
        return _wrap_builder(tiny, prepared)
    from transforms.prefetch_source import load_rewritten

    loaded: list[Any] = []

    def build(switch: bool) -> Any:
        if not loaded:
            loaded.append(load_rewritten(tiny, source, directory))
        return tiny.rebuild(loaded[0], enable_prefetch=switch)

    return build


def _wrap_builder(tiny: "LoadedModel", prepared: Prepared) -> "Build":
    from transforms.prefetch_wrap import prefetch_wrap

    @contextmanager
    def build(switch: bool) -> Iterator[Any]:
        if not switch:
            yield tiny.module
            return
        wrapped = prefetch_wrap(tiny, prepared.tiny_resolution.plan)
        try:
            yield tiny.module
        finally:
            wrapped.undo()

    return build


def _assess(prepared: Prepared, numerics: Rung) -> "tuple[Assessment, Forecast]":
    from pipeline.assess import assess
    from pipeline.simulator import Baseline
    from pipeline.windows import copies_of

    experiment, resolution = prepared.experiment, prepared.resolution
    key = fingerprint(experiment.model_key, experiment.machine_key)
    baseline = MEMO.get(
        "simulated baseline with all its draws",
        key,
        lambda: Baseline(prepared.workload, experiment.machine, experiment.draws, experiment.seed),
    )
    forecast = baseline.forecast(copies_of(resolution.plan, prepared.workload))
    found = assess(
        prepared.workload,
        resolution.plan,
        resolution.matches,
        experiment.machine,
        forecast,
        baseline=baseline,
        placements=resolution.placements,
        loaded=prepared.full,
        numerics=numerics,
    )
    return found, forecast


def _performance(assessment: Assessment) -> Rung:
    """A forecast was made or it was not: the verdict, not the rung, says whether it pays."""
    gain = assessment.metrics["delta.step"]
    text = f"modelled, not measured: {gain.value:+.2f} % [{gain.low:+.2f}, {gain.high:+.2f}] of the decode step"
    return Rung("passed", text, f"建模结果,非实测:decode 单步 {gain.value:+.2f} % [{gain.low:+.2f}, {gain.high:+.2f}]")


def _write(directory: Path, record: TrialRecord, prepared: Prepared, forecast: "Forecast") -> None:
    from pipeline.report import write_report

    data = record.to_json()
    write_json(directory / "verification.json", data["verification"])
    write_json(directory / "metrics.json", {k: data[k] for k in ("metrics", "targets", "checklist", "verdict")})
    write_report(directory, record, prepared.workload, forecast)


@contextmanager
def _stage(name: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    except Exception as error:
        raise StageError(name, error) from error
    finally:
        seconds[name] = time.perf_counter() - start
