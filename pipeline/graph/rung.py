"""The graph rung: lower the transformed decode step at full size in a worker, and check the graph against the plan."""

import graphlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.graph.checks import check_prefetches
from pipeline.graph.findings import Finding
from pipeline.graph.folder import COMMAND, BrokenFrontEndError, FrontEnd, NoFrontEndError, find_front_end
from pipeline.graph.graph import Graph
from pipeline.graph.notes import NoteGroup, grouped
from pipeline.graph.rewording import reword
from pipeline.graph.scope_checks import check_scopes, count_scoped
from pipeline.graph.supervise import DEFAULT_LIMITS, Ended, Limits, interrupted_by_sigterm, supervise
from pipeline.record import Rung, Text
from pipeline.scope_remarks import scope_key
from pipeline.scope_spans import Calls

if TYPE_CHECKING:
    from pipeline.experiment import Prepared
    from transforms.plan import Plan

MODES = ("ge_graph", "npugraph_ex")
ASSUMED = "that CANN has these kernels and keeps these nodes was assumed, not checked"
ASSUMED_ZH = "CANN 是否支持这些算子、是否保留这些节点为假设,未验证"
_CUT = Text("noted (a kernel that does not fuse may cut a scope): ", "备注(不可融合的算子可能切断 scope):")
_ROOT = Path(__file__).resolve().parents[2]
_SHOWN = 5  # findings, and kinds of notes, in a rung's text


@dataclass(frozen=True)
class GraphCheck:
    """What the rung found.

    Attributes:
        rung: status and detail.
        planned: prefetches in the plan.
        found: prefetch nodes in the graph (`Cmo`, or `npu_prefetch` of npugraph_ex); None if there is no graph.
        scopes_planned: SuperKernel scopes in the plan.
        scoped_kernels_planned: kernels in these scopes as `validate` counts them.
        scoped_kernels: kernels in the graph that carry a scope; None if there is no graph.
        nodes: nodes of the graph; None if there is none.
        seconds: wall time of the worker.
        peak_mib: most memory that the worker held.
        front_end: e.g. `torch_npu 2.13.0`.
        findings: deviations from the plan, all of them.
        notes: what one should know about the scopes, and what fails nothing, per kind and pattern of layers.
        graph: the graph itself.
    """

    rung: Rung
    planned: int
    found: int | None = None
    scopes_planned: int = 0
    scoped_kernels_planned: int = 0
    scoped_kernels: int | None = None
    nodes: int | None = None
    seconds: float = 0.0
    peak_mib: float = 0.0
    front_end: str = ""
    findings: tuple[Finding, ...] = ()
    notes: tuple[NoteGroup, ...] = ()
    graph: Graph | None = None

    def to_json(self) -> dict[str, Any]:
        """For `verification.json`: counts, and all findings."""
        return {
            **self.rung.to_json(),
            "cmo": {"planned": self.planned, "found": self.found},
            "scopes": {
                "planned": self.scopes_planned,
                "kernels_planned": self.scoped_kernels_planned,
                "kernels": self.scoped_kernels,
            },
            "nodes": self.nodes,
            "seconds": round(self.seconds, 2),
            "peak_mib": round(self.peak_mib, 1),
            "front_end": self.front_end,
            "assumed": ASSUMED,
            "findings": [f.to_json() for f in self.findings],
            "notes": [f.to_json() for f in self.notes],
        }


def check_graph(
    prepared: "Prepared",
    source: str | Path | None,
    limits: Limits = DEFAULT_LIMITS,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> GraphCheck:
    """Lower the transformed model at full size and compare with the plan.

    Args:
        prepared: from `experiment.prepare`; its full-size plan is what is checked against.
        source: text, or file, of the rewritten modeling file; None checks the wrap realisation.
        limits: of the worker.
        folder: of the front end, instead of the default one.
        environment: for the worker, beside this process's.

    Returns:
        The rung and its counts. Nothing is raised for what the worker does: a worker that dies is `could_not_check`.
    """
    plan, experiment = prepared.resolution.plan, prepared.experiment
    scoped = _scoped_operators(prepared)
    result = GraphCheck(
        Rung("not_run", ""),
        len(plan.prefetch),
        scopes_planned=len(plan.scopes),
        scoped_kernels_planned=sum(map(len, scoped.values())),
    )
    if plan.exe_mode not in MODES:
        return replace(result, rung=Rung("not_run", f"exe_mode {plan.exe_mode} makes no graph", "该执行模式不生成图"))
    try:
        front_end = find_front_end(folder)
    except NoFrontEndError as missing:
        return replace(result, rung=Rung("not_run", str(missing), f"未安装 NPU 前端,用 `{COMMAND}` 安装"))
    except BrokenFrontEndError as broken:
        return replace(result, rung=_could_not(str(broken)))
    text = Path(source).read_text() if isinstance(source, Path) else source
    request = {
        "plan": plan.to_json(),
        "model": _plain(experiment.config["model"]),
        "deployment": _plain(experiment.config["deployment"]),
        "target": experiment.machine.generation,
        "source": text,
    }
    result = replace(result, front_end=f"torch_npu {front_end.version}")
    return _checked(result, prepared, text, *_ask(request, front_end, limits, environment or {}))


def _scoped_operators(prepared: "Prepared") -> dict[str, list[str]]:
    """Label of each scope -> operators of the kernels that the workload has inside."""
    calls = Calls(prepared.workload)
    placed = prepared.resolution.scopes.placed
    return {p.scope.label: [kernel.op for kernel in calls.members(p.span)] for p in placed}


@dataclass(frozen=True)
class _Answer:
    """What came back from the worker: its response, or None and the end of its log."""

    response: Mapping[str, Any] | None
    log: str


def _ask(
    request: Mapping[str, Any], front_end: FrontEnd, limits: Limits, environment: Mapping[str, str]
) -> tuple[Ended, _Answer]:
    """Run the worker on one request. Whatever happens, its processes and files are gone afterwards."""
    with interrupted_by_sigterm(), tempfile.TemporaryDirectory(prefix="npu-recipes-graph-") as name:
        directory = Path(name)
        asked, answer, log = directory / "request.json", directory / "response.json", directory / "log"
        place = {
            "front_end": str(front_end.path) if front_end.path else None,
            "package": str(front_end.package),
            "directory": name,
            "parent": os.getpid(),
        }
        asked.write_text(json.dumps({**request, **place}))
        command = [sys.executable, "-m", "pipeline.graph.worker", str(asked), str(answer)]
        ended = supervise(command, _environment(environment), log, limits)
        try:
            response = json.loads(answer.read_text())
        except (OSError, ValueError):
            response = None
        tail = log.read_text(errors="replace").strip().splitlines()[-3:]
        return ended, _Answer(response, " | ".join(tail)[-600:])


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    return {**os.environ, **quiet, **more}


def _checked(result: GraphCheck, prepared: "Prepared", source: str | None, ended: Ended, answer: _Answer) -> GraphCheck:
    plan = prepared.resolution.plan
    response = answer.response
    peak = max(ended.peak_bytes, (response or {}).get("peak_kib", 0) << 10)
    result = replace(result, seconds=ended.seconds, peak_mib=peak / (1 << 20))
    if response is None or ended.reason != "exited" or ended.code:
        why = _why(ended, answer)
        return replace(result, rung=_could_not(why.en, why.zh))
    if "error" in response:
        error = response["error"]
        if _is_refusal(response["stage"], error["type"]):
            placed = prepared.resolution.scopes.placed
            keys = {p.scope.label: scope_key(prepared.experiment.recipe, p.part.name) for p in placed}
            return replace(result, rung=_refused(reword(error, plan, source, keys).text))
        said = f"{error['type']}: {' '.join(str(error['message']).split())[:400]}"
        doing = _DOING[response["stage"]]
        broken = response["stage"] == "front_end"  # a folder whose files have the right sizes can still be damaged
        hint, hint_zh = (
            (f"; `{COMMAND} --again` replaces a fetched folder", f";`{COMMAND} --again` 可重新获取前端目录")
            if broken
            else ("", "")
        )
        en = f"the worker could not {doing.en}: {said}{hint}"
        return replace(result, rung=_could_not(en, f"{doing.zh}失败:{said}{hint_zh}"))
    graph = Graph.from_json(response["graph"])
    result = replace(
        result,
        graph=graph,
        found=len(graph.prefetches),
        nodes=len(graph.nodes),
        scoped_kernels=count_scoped(graph),
    )
    try:
        of_scopes, notes = check_scopes(graph, plan, _scoped_operators(prepared))
        findings = (*check_prefetches(graph, plan), *of_scopes)
        result = replace(result, notes=grouped(notes))
    except graphlib.CycleError as error:
        findings = (Finding("cycle", "", f"nodes wait for each other: {' -> '.join(error.args[1])}"),)
    if findings:
        return replace(result, rung=_deviates(findings), findings=findings)
    return replace(result, rung=_passed(result, plan, response["cann"]))


_DOING = {
    "front_end": Text("import the front end", "导入前端"),
    "model": Text("load the model", "加载模型"),
    "source": Text("load the rewritten source", "加载改写后的源码"),
    "lowering": Text("lower the decode step", "降低 decode 单步"),
}


def _is_refusal(stage: str, error_type: str) -> bool:
    """Whether an error says that the model or the plan is wrong; others say that the machine could not check it."""
    if error_type == "MemoryError":
        return False
    return stage == "source" or (stage == "lowering" and error_type not in ("ImportError", "ModuleNotFoundError"))


def _passed(result: GraphCheck, plan: "Plan", cann: bool) -> Rung:
    node, graph = ("Cmo", "GE graph") if plan.exe_mode == "ge_graph" else ("npu_prefetch", "FX graph")
    by = f"{result.front_end}, {'with CANN' if cann else 'without CANN'}"
    by_zh = f"{result.front_end},{'有' if cann else '无'} CANN"
    counts = f"{result.found} {node} nodes for {result.planned} planned prefetches among {result.nodes} nodes"
    if plan.scopes:
        inside = result.scoped_kernels
        counts_of = f"{inside} kernels in {len(plan.scopes)} SuperKernel scopes, each as planned, none outside"
        counts_zh = f"{len(plan.scopes)} 个 SuperKernel scope 内共 {inside} 个算子,均与计划一致,范围外没有"
        shown, more = result.notes[:_SHOWN], max(0, len(result.notes) - _SHOWN)
        kinds, kinds_zh = [f"and {more} kinds more"] * bool(more), [f"另有 {more} 类"] * bool(more)
        scopes = f"; {counts_of}" + (f"; {_CUT.en}{', '.join([*map(str, shown), *kinds])}" if shown else "")
        scopes_zh = f";{counts_zh}" + (f";{_CUT.zh}{'、'.join([*(n.zh for n in shown), *kinds_zh])}" if shown else "")
    else:
        scopes = scopes_zh = ""
    detail = (
        f"the full-size decode step lowered to a {graph} ({by}): {counts}, each with its weight, size, offset and "
        f"dependency, in the plan's order and before its target{scopes}; {ASSUMED}"
    )
    zh = (
        f"完整规模 decode 单步已降为 {graph}({by_zh}):{result.planned} 个计划预取对应 {result.found} 个 {node} 节点,"
        f"权重、大小、偏移、依赖与顺序均一致{scopes_zh};{ASSUMED_ZH}"
    )
    return Rung("passed", detail, zh)


def _deviates(findings: tuple[Finding, ...]) -> Rung:
    shown = "; ".join(str(f) for f in findings[:_SHOWN])
    more = f"; and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
    kinds = ", ".join(f"{code} x {count}" for code, count in Counter(f.code for f in findings).items())
    return Rung(
        "failed",
        f"the graph is not what was planned: {shown}{more}; {ASSUMED}",
        f"图与计划不符,共 {len(findings)} 处({kinds}),见 verification.json;首处原文:“{findings[0]}”;{ASSUMED_ZH}",
    )


def _refused(text: str) -> Rung:
    return Rung("failed", f"{text}; {ASSUMED}", f"前端不接受该 decode 单步,原文:“{text}”;{ASSUMED_ZH}")


def _could_not(text: str, zh: str = "") -> Rung:
    return Rung("could_not_check", f"the graph was not checked: {text}", f"未能检查图:{zh or f'原文:“{text}”'}")


def _why(ended: Ended, answer: _Answer) -> Text:
    said, said_zh = (f" (its last words: {answer.log})", f"(最后输出:“{answer.log}”)") if answer.log else ("", "")
    seconds, gib = f"{ended.seconds:.0f} s", f"{ended.peak_bytes / (1 << 30):.1f} GiB"
    cpu = f"{ended.cpu_seconds:.0f} s"
    if ended.reason == "stalled":
        en = f"the worker was stopped after {seconds}: it hung ({cpu} of CPU time, and none for long)"
        zh = f"工作进程运行 {seconds} 后被终止:已卡住(CPU 时间 {cpu},长时间无进展)"
    elif ended.reason == "timeout":
        en = f"the worker was stopped after {seconds}, {cpu} of them CPU time: it hung, or the time limit is too short"
        zh = f"工作进程运行 {seconds}(CPU 时间 {cpu})后被终止:可能卡住,或时限太短"
    elif ended.reason == "memory":
        en = f"the worker was stopped at {gib}, above its memory limit"
        zh = f"工作进程内存达到 {gib},超过上限而被终止"
    elif ended.reason == "killed":
        en = f"the worker was killed by signal {ended.code} (by the system for want of memory, or it crashed)"
        zh = f"工作进程被信号 {ended.code} 终止(系统内存不足,或进程崩溃)"
    else:
        en = f"the worker ended with exit code {ended.code} and no result"
        zh = f"工作进程以退出码 {ended.code} 结束,没有结果"
    return Text(en + said, zh + said_zh)


def _plain(value: Any) -> Any:
    """Mappings and sequences of a configuration as JSON has them."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
