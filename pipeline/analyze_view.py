"""What `analyze` prints in text: one table each of ranks, memory-bound operators, candidates and scopes."""

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.analysis.results import Candidate, Hotspot, KernelRef, PhaseAnalysis
from pipeline.analysis.words import LIMITED, SHORT
from pipeline.figures import written
from pipeline.findings_view import findings_view, recipe_lines
from pipeline.fitting import Fitting
from pipeline.progress import shown
from pipeline.sizes_text import approximate_size

if TYPE_CHECKING:
    from pipeline.analyze import AnalyzeResult

_CHAINS = 5
_SHAPES = 60
_NARROW = 22  # of the first column of a table, however narrow the terminal


def analysis_view(result: "AnalyzeResult") -> RenderableType:
    """The whole result for a terminal."""
    analysis = result.analysis
    assumed = " (assumed: hardware=NAME chooses another)" if result.assumed else ""
    head = f"profile {shown(result.profile.source)}, {analysis.kind.replace('_', ' ')}, {analysis.kernels:,} kernels; "
    blocks: list[RenderableType] = [Text(head + f"hardware {analysis.hardware}{assumed}", style="bold")]
    if len(result.ranks) > 1:
        blocks += [Text(""), _ranks(result)]
    for phase in analysis.phases:
        blocks += [Text(""), *phase_view(phase, result.top)]
        if phase.name == "decode" and result.findings is not None:
            blocks += [Text(""), *findings_view(result.findings)]
    if result.directory is not None:
        blocks += [Text(""), Text(f"report: {shown(result.directory / 'report.md')}")]
    if result.findings is not None and result.findings.recipe is not None:
        blocks += recipe_lines(result.findings.recipe, result.directory)
    return Group(*blocks)


def phase_view(phase: PhaseAnalysis, top: int) -> list[RenderableType]:
    """Everything about one phase."""
    blocks: list[RenderableType] = [Text(phase_line(phase), style="bold")]
    shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in phase.classes.items())
    blocks.append(Text(f"kernel time by class: {shares}"))
    bound = phase.memory_bound
    if not bound:
        blocks.append(Text("no kernel is memory-bound: nothing to prefetch"))
    else:
        blocks += [Text(""), _hotspots(bound[:top], len(bound))]
    if phase.name != "decode":
        blocks.append(Text("prefetch and SuperKernel are for decode: no candidates in this phase"))
        return blocks
    blocks += [Text(""), *_candidates(phase), Text(""), *_chains(phase)]
    return blocks


def phase_line(phase: PhaseAnalysis) -> str:
    """`decode, 9 steps: 14,698.5 us a step [..] (measured), kernels run in 14,601.4 us of it; ...`."""
    step = phase.step
    band = "" if step.low == step.high else f" [{written(step.low or 0)}, {written(step.high or 0)}]"
    left = [f"{phase.dropped} left out as the first"] if phase.dropped else []
    left += [f"{phase.different} with other kernels"] if phase.different else []
    words = f"{phase.name}, {phase.steps} {'step' if phase.steps == 1 else 'steps'}"
    words += f" ({', '.join(left)})" if left else ""
    words += f": {written(step.value)} us a step{band}, {written(phase.busy_us)} us of it busy (measured); "
    words += phase.why["en"]
    layers = [f"{n} layers of {p} kernels on stream {s}" for s, n, p in phase.layers if n > 2 and p > 2]
    return words + (f"; {', '.join(layers)}" if layers else "")


def _ranks(result: "AnalyzeResult") -> Fitting:
    table = Table(title="Ranks, us (measured)", title_justify="left", header_style="bold")
    table.add_column("profile", overflow="fold")
    for heading in ("kernels", "computing", "busy", "span"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for number, rank in enumerate(result.ranks):
        cells = [written(v) for v in (rank.computing_us, rank.busy_us, rank.span_us)]
        mark = "analysed" if number == result.chosen else ""
        table.add_row(rank.profile.label, f"{rank.profile.kernels.height:,}", *cells, mark)
    return Fitting(table)


def _hotspots(bound: "tuple[Hotspot, ...]", every: int) -> Fitting:
    title = "Memory-bound operators" + (f", {len(bound)} of {every}" if len(bound) < every else "")
    table = Table(title=f"{title} (times measured; bytes from shapes)", title_justify="left", header_style="bold")
    table.add_column("operator, shapes", overflow="fold", min_width=_NARROW)
    for heading in ("calls x us", "us/step\nof time", "bytes each", "GB/s\nof peak", "TFLOPS"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("ratios, remarks", min_width=12)
    for spot in bound:
        ratios = {True: "agree", False: f"disagree ({spot.busiest})", None: ""}[spot.agrees]
        table.add_row(
            f"{spot.op_type}\n{short_shapes(spot.shapes)}",
            f"{spot.calls} x {written(spot.each_us, 2)}",
            f"{written(spot.time_us)}\n{100 * spot.share:.1f} %",
            bytes_text(spot),
            "-" if spot.hbm_share is None else f"{_or_dash(spot.gb_s, 0)}\n{100 * spot.hbm_share:.0f} %",
            _or_dash(spot.tflops, 1),
            ", ".join(filter(None, (ratios, SHORT[spot.reason]))),
        )
    return Fitting(table)


def _candidates(phase: PhaseAnalysis) -> list[RenderableType]:
    blocks: list[RenderableType] = []
    if phase.candidates:
        table = Table(
            title="Prefetch candidates (windows measured; sizes, what fits and saving modelled)",
            title_justify="left",
            header_style="bold",
        )
        table.add_column("target\n  after the output of", overflow="fold", min_width=_NARROW)
        for heading in (
            "calls x us",
            "window,\nus",
            "fits\n[low, high]",
            "max_size\nof weight",
            "saves up\nto, us/step",
        ):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("rule, remarks", min_width=12)
        for found in phase.candidates:
            low, high = (f"{(end or 0) / (1 << 20):.1f}" for end in (found.fits.low, found.fits.high))
            table.add_row(
                f"{place(found.target)}\n  after {place(found.dependency)}",
                f"{found.calls} x {written(found.target_us, 1)}",
                written(found.window_us, 1),
                f"{_mib(found.fits.value)}\n[{low}, {high}]",
                f"{approximate_size(found.max_size)}\nof {approximate_size(found.weight_bytes)}",
                written(found.saving.value, 1),
                rule_text(found),
            )
        blocks.append(Fitting(table))
        held = f"together at most {approximate_size(phase.in_flight)} of {approximate_size(phase.l2_budget)} of L2"
        blocks.append(Text(f"{held} (modelled). Try one target first, then larger sizes, then more targets."))
    elif any(h.kind in _TARGETS for h in phase.memory_bound):
        blocks.append(Text("no candidate: no memory-bound target has a safe window", style="bold"))
    else:
        blocks.append(Text("no candidate: no MatMul, GroupedMatmul or MLAProlog is memory-bound", style="bold"))
    if phase.refused:
        table = Table(title="No safe window", title_justify="left", header_style="bold")
        table.add_column("target", overflow="fold")
        for heading in ("calls", "us each", "whole weight"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("why", overflow="fold")
        for none in phase.refused:
            cells = (str(none.calls), written(none.target_us, 1), approximate_size(none.weight_bytes))
            table.add_row(place(none.target), *cells, none.reason["en"])
        blocks += [Text(""), Fitting(table)]
    return blocks


_TARGETS = ("matmul", "quant_matmul", "batch_matmul", "grouped_matmul", "mla_prolog")


def _chains(phase: PhaseAnalysis) -> list[RenderableType]:
    worth = [c for c in phase.chains if c.worth]
    if not worth:
        return [Text("SuperKernel: no chain of kernels whose launches are worth a scope (modelled)")]
    title = f"SuperKernel: chains worth a scope, {min(_CHAINS, len(worth))} of {len(worth)} (savings modelled)"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("from\n  to", overflow="fold")
    for heading in ("chains", "kernels", "launch-\nbound", "us each", "saves, us each\n[band]", "of the\nstep"):
        table.add_column(heading, justify="right", no_wrap=True)
    for chain in worth[:_CHAINS]:
        low, high = chain.saving.low or 0.0, chain.saving.high or 0.0
        table.add_row(
            f"{place(chain.first)}\n  to {place(chain.last)}",
            str(chain.calls),
            str(chain.kernels),
            str(chain.launch_bound),
            written(chain.time_us),
            f"{written(chain.saving.value)}\n[{written(low)}, {written(high)}]",
            f"{100 * chain.step_share:.2f} %",
        )
    return [Fitting(table)]


def place(kernel: KernelRef) -> str:
    """`QuantBatchMatmulV3 10/31, stream 2`: the eleventh of the 31 kernels of a layer."""
    return f"{kernel.label}, stream {kernel.stream}" if kernel.stream else kernel.label


def rule_text(found: Candidate) -> str:
    """The row of the decision table, and what is to be known about the window."""
    words = [found.rule]
    if found.limited_by != "coefficient":
        words.append(f"limited by {LIMITED[found.limited_by]['en']}")
    if found.link_us:
        words.append(f"{written(found.link_us)} us of communication in it")
    if found.passed:
        words.append(f"beside {', '.join(dict.fromkeys(found.passed))}")
    if found.nearest.row != found.dependency.row:
        words.append(f"fits after {found.nearest.label} too")
    return "; ".join(words)


def bytes_text(spot: Hotspot) -> str:
    """Bytes of one call; a range where the shapes leave one."""
    if spot.bytes is None:
        return "-"
    text = approximate_size(spot.bytes)
    if spot.bytes_high and spot.bytes_high > 1.01 * spot.bytes:
        text += f"\nto {approximate_size(spot.bytes_high)}"
    return text


def short_shapes(shapes: str) -> str:
    """The shapes of the first inputs."""
    return shapes if len(shapes) <= _SHAPES else shapes[: _SHAPES - 3] + "..."


def _mib(size: float) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _or_dash(value: float | None, digits: int) -> str:
    return "-" if value is None else written(value, digits)
