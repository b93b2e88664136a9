"""One trial: transform, verify, forecast, judge, and write its directory."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.problems import RefusedError
from pipeline.environment import interpreter_problems
from pipeline.experiment import Prepared
from pipeline.figures import written
from pipeline.memo import MEMO, fingerprint
from pipeline.outputs import write_json, write_text
from pipeline.record import Assessment, Rung, TrialRecord

if TYPE_CHECKING:
    from pipeline.graph.rung import GraphCheck
    from pipeline.simulator import Forecast
    from transforms.realisation import Realisation, SourceResult


class StageError(RuntimeError):
    """A trial crashed; `stage` says where, `__cause__` why."""

    def __init__(self, stage: str, cause: BaseException) -> None:
        super().__init__(f"{stage}: {type(cause).__name__}: {cause}")
        self.stage = stage


def run_trial(
    prepared: Prepared,
    directory: Path,
    command: Sequence[str] = (),
    key: str = "",
    typed: Sequence[str] = (),
    auto_graph: bool = True,
) -> TrialRecord:
    """Run one trial and write its files into `directory`.

    Args:
        prepared: from `experiment.prepare`.
        directory: exists, and is empty but for what the caller keeps there.
        command: words of the command that runs this trial alone again.
        key: the trial key.
        typed: the overrides as a user typed them.
        auto_graph: whether `verify.graph=auto` runs the graph rung, which takes much longer than all others.

    Raises:
        RefusedError: this interpreter can't rewrite source.
        StageError: a stage crashed. A failed rung is no crash: it is in the record.
    """
    experiment, plan = prepared.experiment, prepared.resolution.plan
    seconds: dict[str, float] = {}
    MEMO.take_reused()
    realisation = prepared.realisation
    if realisation is None:
        raise RefusedError(interpreter_problems())
    source = realisation.source
    with _stage("transform", seconds):
        write_json(directory / "plan.json", plan.to_json())
        if source is not None:
            write_text(directory / "patch.diff", source.diff)
    with _stage("verify", seconds):
        rungs, counts, graph = _verify(prepared, realisation, directory / "transformed", auto_graph)
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
        **counts,
        assessment=assessment,
        diff=source.diff if source else "",
        changed_files=[source.name] if source else [],
        reused=[*prepared.reused, *MEMO.take_reused()],
        rerun=" ".join(command),
        language="zh" if experiment.language == "zh" else "en",
        transform=experiment.transform,
        seconds=seconds,
    )
    with _stage("report", seconds):
        _write(directory, record, prepared, forecast, graph)
    return record


def _verify(
    prepared: Prepared, realisation: "Realisation", directory: Path, auto_graph: bool
) -> "tuple[dict[str, Rung], dict[str, Any], GraphCheck | None]":
    """The rungs below performance, the calls and scopes planned and observed, and what the graph rung found."""
    from pipeline.verify import baseline_run, check_compiles, check_numerics

    experiment, tiny, plan = prepared.experiment, prepared.tiny, prepared.tiny_resolution.plan
    source = realisation.source

    def build(switch: bool) -> Any:
        return realisation.build(switch, directory)

    rungs = {
        rung: Rung("not_run", f"verify.{rung}=false", f"已关闭(verify.{rung}=false)")
        for rung in ("compiles", "numerics", "graph")
    }
    counts: dict[str, Any] = {"calls_planned": len(plan.prefetch), "scopes_planned": len(plan.scopes)}
    if experiment.wants("compiles"):
        rungs["compiles"] = check_compiles(tiny, build, {source.name: source.after} if source else None)
    broken = rungs["compiles"].status == "failed"
    if experiment.wants("numerics") and broken:
        rungs["numerics"] = Rung("not_run", "the transformed model does not run", "改写后的模型无法运行")
    elif experiment.wants("numerics"):
        baseline = MEMO.get("baseline outputs of the tiny model", experiment.model_key, lambda: baseline_run(tiny))
        result = check_numerics(tiny, plan, build, baseline)
        rungs["numerics"] = result.rung
        counts |= {"calls_observed": result.calls_observed, "scopes_observed": result.scopes_observed}
    wanted = experiment.wants("graph")
    graph = None
    if wanted == "auto" and not auto_graph:
        rungs["graph"] = Rung(
            "not_run",
            "verify.graph=auto leaves it out in a sweep; verify.graph=true runs it",
            "verify.graph=auto 在扫描中不执行此项;verify.graph=true 则执行",
        )
    elif wanted:
        graph = _graph(prepared, source, required=wanted is True)
        rungs["graph"] = graph.rung
    return rungs, counts, graph


def _graph(prepared: Prepared, source: "SourceResult | None", required: bool) -> "GraphCheck":
    """The graph rung; one that was asked for and could not run counts as not checked."""
    from pipeline.graph.rung import check_graph

    check = check_graph(prepared, source.after if source else None)
    if required and check.rung.status == "not_run":
        return replace(check, rung=replace(check.rung, status="could_not_check"))
    return check


def _assess(prepared: Prepared, numerics: Rung) -> "tuple[Assessment, Forecast]":
    from pipeline.assess import assess
    from pipeline.scope_spans import fused_scopes
    from pipeline.simulator import Baseline
    from pipeline.windows import copies_of

    experiment, resolution = prepared.experiment, prepared.resolution
    key = fingerprint(experiment.model_key, experiment.machine_key)
    baseline = MEMO.get(
        "simulated baseline with all its draws",
        key,
        lambda: Baseline(prepared.workload, prepared.machine, experiment.draws, experiment.seed),
    )
    plan, workload = resolution.plan, prepared.workload
    forecast = baseline.forecast(copies_of(plan, workload), fused_scopes(plan, workload))
    found = assess(
        workload,
        plan,
        resolution.matches,
        prepared.machine,
        forecast,
        baseline=baseline,
        placements=resolution.placements,
        loaded=prepared.full,
        numerics=numerics,
        scopes=resolution.scopes,
    )
    return found, forecast


def _performance(assessment: Assessment) -> Rung:
    """A forecast was made or it was not: the verdict, not the rung, says whether it pays."""
    gain = assessment.metrics["delta.step"]
    band = [gain.value if end is None else end for end in (gain.low, gain.high)]
    value, low, high = (written(v, 2, sign=True) for v in (gain.value, *band))
    text = f"modelled, not measured: {value} % [{low}, {high}] of the decode step"
    return Rung("passed", text, f"建模结果,非实测:decode 单步 {value} % [{low}, {high}]")


def _write(
    directory: Path, record: TrialRecord, prepared: Prepared, forecast: "Forecast", graph: "GraphCheck | None"
) -> None:
    from pipeline.report import write_report

    data = record.to_json()
    rungs = {**data["verification"], **({"graph": graph.to_json()} if graph else {})}
    write_json(directory / "verification.json", rungs)
    write_json(
        directory / "metrics.json",
        {k: data[k] for k in ("metrics", "targets", "checklist", "verdict", "superkernel") if k in data},
    )
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
