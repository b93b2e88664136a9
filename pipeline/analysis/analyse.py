"""From one profile to everything that `analyze` reports."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from models.problems import Problem, RefusedError
from pipeline.analysis.bandwidth import Leftover
from pipeline.analysis.candidates import Found, find_candidates
from pipeline.analysis.chains import find_chains
from pipeline.analysis.operators import Limits, OperatorTable, operator_table
from pipeline.analysis.phases import Phase, find_phases
from pipeline.analysis.results import Analysis, Hotspot, PhaseAnalysis
from pipeline.analysis.roofline import METRICS, RATES, Signatures, classified, signatures
from pipeline.analysis.sequence import Sequence, sequence
from pipeline.analysis.steps import MedianStep, Steps, find_steps, median_step
from pipeline.figures import Figure

if TYPE_CHECKING:
    import polars as pl

    from pipeline.profile.rows import Profile
    from pipeline.simulator.machine import Machine

_SHOWN = 5  # kernels that one message names
_ABOVE = 0.75  # of the time of memory-bound MatMuls: more of it above the HBM peak is told
_FEW = 4  # MatMuls that say nothing about the device
_BUSY = 0.7  # a step in which kernels run for less of the time is told to be idle


@dataclass(frozen=True)
class AnalysisOptions:
    """What the user may set.

    Attributes:
        coefficient: share of the theoretical size to suggest first.
        decode_rows: rows of the activation up to which a step is decode; None takes the table's.
        phase: only this phase; None analyses all.
    """

    coefficient: Decimal = Decimal("0.5")
    decode_rows: int | None = None
    phase: str | None = None


def analyse(profile: "Profile", machine: "Machine", options: AnalysisOptions | None = None) -> Analysis:
    """Analyse a profile.

    Args:
        profile: one rank's kernels.
        machine: the device that it was taken on.
        options: see there.

    Raises:
        RefusedError: the profile has neither shapes nor ratios, so that no kernel can be classified.
    """
    options = options or AnalysisOptions()
    operators = operator_table()
    if not profile.has_shapes and not profile.has_ratios:
        raise RefusedError([*profile.problems, _cannot_classify(profile)])
    limits = operators.limits
    if options.decode_rows is not None:
        limits = replace(limits, decode_rows=float(options.decode_rows))
    found = signatures(profile.kernels, operators, machine.nominal())
    steps = find_steps(_slim(profile.kernels, found))
    phases = find_phases(steps.kernels, found.table, limits.decode_rows)
    problems = [*_shape_problems(profile, found)]
    analysed = []
    for phase in phases:
        if options.phase in (None, phase.name):
            analysed.append(_phase(profile, machine, operators, limits, options, found, steps, phase, problems))
    return Analysis(
        source=str(profile.source),
        rank=profile.rank,
        kind=profile.kind,
        hardware=machine.name,
        kernels=profile.kernels.height,
        outside=steps.outside,
        phases=tuple(analysed),
        problems=tuple(problems),
        signatures=found.table,
        keys=found.keys,
        every_step=steps.kernels,
    )


def per_row(profile: "Profile", analysis: Analysis, machine: "Machine") -> "pl.DataFrame":
    """Rates, class and reason of every single kernel of the profile, in its order.

    Returns:
        `line`, `name`, `op_type`, `duration_us`, `bytes`, `flops` and `roofline.RATES`.
    """
    wanted = profile.kernels.select("line", "name", "duration_us", *METRICS).with_columns(analysis.keys.alias("key"))
    about = ("key", "op_type", "kind", "core", "known", "bytes", "flops", "compute", "memory_us", "compute_us")
    rows = wanted.join(analysis.signatures.select(about), on="key", how="left", maintain_order="left")
    return classified(rows, machine.nominal(), operator_table().limits).select(
        "line", "name", "op_type", "duration_us", "bytes", "flops", *RATES
    )


def _slim(kernels: "pl.DataFrame", found: Signatures) -> "pl.DataFrame":
    """What finding steps needs."""
    import polars as pl

    idents = found.table.select("key", pl.col("ident").rank("dense").cast(pl.UInt32))
    return (
        kernels.select(_lanes(kernels), "step", "start_us", "duration_us")
        .with_row_index("row")
        .with_columns(found.keys.alias("key"))
        .join(idents, on="key", how="left", maintain_order="left")
    )


def _lanes(kernels: "pl.DataFrame") -> "pl.Series":
    """Numbers for the streams; kernels without one count as a stream of their own."""
    import polars as pl

    return kernels["stream"].fill_null("").cast(pl.Categorical).to_physical().cast(pl.UInt32).alias("lane")


def _phase(
    profile: "Profile",
    machine: "Machine",
    operators: OperatorTable,
    limits: Limits,
    options: AnalysisOptions,
    found: Signatures,
    steps: Steps,
    phase: Phase,
    problems: list[Problem],
) -> PhaseAnalysis:
    median = median_step(steps.kernels, list(phase.steps), profile.kernels, METRICS)
    rows = median.kernels.join(found.table.drop("row", "calls", "ident"), on="key", how="left", maintain_order="left")
    rows = rows.hstack(profile.kernels.select("name", "stream")[rows["row"]].get_columns())
    step = sequence(classified(rows, machine.nominal(), limits), operators)
    decodes = phase.name == "decode"  # both levers are for decode only
    result = find_candidates(step, machine, limits, options.coefficient) if decodes else Found((), (), 0.0, 0)
    busy = Leftover(step.demand(machine), machine).busy(0.0, float(step.end.max(initial=0.0)))
    problems += _step_problems(profile, phase, median, steps, result.left_out, busy)
    problems += _peak_problems(profile, step, phase, machine)
    nominal = machine.nominal()
    return PhaseAnalysis(
        name=phase.name,
        why=_why(phase, limits),
        rows=phase.rows,
        found_by=steps.found_by,
        steps=len(median.steps),
        dropped=median.dropped,
        different=median.different,
        step=Figure(median.step_us, "us", median.step_low, median.step_high, "measured"),
        busy_us=busy,
        kernel_us=float(step.frame["duration_us"].sum()),
        kernels=len(step),
        layers=tuple((step.names[stream], block.layers, block.period) for stream, block in step.places.blocks),
        classes=_classes(step),
        hotspots=_hotspots(step),
        candidates=result.candidates,
        refused=result.refused,
        chains=find_chains(step, machine, limits, median.step_us) if decodes else (),
        in_flight=result.in_flight,
        l2_budget=nominal.l2_bytes * nominal["l2_share"],
        numbers=median.steps,
        sequence=step,
    )


def _classes(step: Sequence) -> dict[str, float]:
    import polars as pl

    total = float(step.frame["duration_us"].sum()) or 1.0
    per = step.frame.group_by("class").agg(pl.col("duration_us").sum()).sort("duration_us", descending=True)
    return {name: time / total for name, time in per.iter_rows()}


def _hotspots(step: Sequence) -> tuple[Hotspot, ...]:
    import polars as pl

    total = float(step.frame["duration_us"].sum()) or 1.0
    first = [
        pl.col(c).first() for c in ("kind", "bytes_low", "bytes", "bytes_high", "flops", "compute", "busiest", "reason")
    ]
    per = (
        step.frame.group_by("op_type", "input_shapes", "class")
        .agg(
            pl.len().alias("calls"),
            pl.col("duration_us").sum().alias("time"),
            pl.col("duration_us").median().alias("each"),
            *(pl.col(c).median() for c in ("gb_s", "tflops", "hbm_share", "peak_share")),
            *first,
            pl.col("agrees").drop_nulls().mode().first().alias("agrees"),
            pl.col("row").first(),
        )
        .sort("time", "op_type", "input_shapes", descending=[True, False, False])
    )
    return tuple(
        Hotspot(
            op_type=r["op_type"] or "",
            shapes=r["input_shapes"] or "",
            kind=r["kind"],
            calls=r["calls"],
            time_us=r["time"],
            share=r["time"] / total,
            each_us=r["each"],
            bytes_low=r["bytes_low"],
            bytes=r["bytes"],
            bytes_high=r["bytes_high"],
            flops=r["flops"],
            gb_s=r["gb_s"],
            tflops=r["tflops"],
            hbm_share=r["hbm_share"],
            peak_share=r["peak_share"],
            kernel_class=r["class"],
            reason=r["reason"],
            busiest=r["busiest"],
            agrees=r["agrees"],
            compute=r["compute"],
            row=r["row"],
        )
        for r in per.iter_rows(named=True)
    )


def _why(phase: Phase, limits: Limits) -> Mapping[str, str]:
    if phase.word:
        return {
            "en": f"it has kernels that only {phase.word} has",
            "zh": f"含有只在 {phase.word} 中出现的算子",
        }
    if phase.rows is None:
        return {"en": "no MatMul with known shapes", "zh": "没有 shape 已知的 MatMul"}
    same = {
        "en": "in every step" if phase.constant else "in the median step",
        "zh": "每步" if phase.constant else "中位步",
    }
    sign = "<=" if phase.name == "decode" else ">"
    if phase.name == "prefill" and phase.rows <= limits.decode_rows:
        return {
            "en": f"{phase.rows} rows {same['en']}, many times those of the smallest steps",
            "zh": f"{same['zh']} {phase.rows} 行，远多于最小的步",
        }
    return {
        "en": f"MatMuls have {phase.rows} rows {same['en']} ({sign} {limits.decode_rows:.0f})",
        "zh": f"MatMul {same['zh']}有 {phase.rows} 行（{sign} {limits.decode_rows:.0f}）",
    }


def _peak_problems(profile: "Profile", step: Sequence, phase: Phase, machine: "Machine") -> list[Problem]:
    """Dense weights that are nearly all read faster than HBM can: prefetched already, or on another device."""
    import polars as pl

    dense = np.array([k.target for k in step.kinds], dtype=bool)
    mine = step.frame.filter(pl.Series(dense) & (pl.col("class") == "memory") & (pl.col("experts") <= 1))
    above = mine.filter(pl.col("reason") == "above_peak")
    if above.height < _FEW or float(above["duration_us"].sum()) < _ABOVE * float(mine["duration_us"].sum()):
        return []
    rate = float(np.median(above["gb_s"].to_numpy()))
    message = (
        f"{phase.name}: {above.height} of {mine.height} memory-bound MatMuls read {rate:.0f} GB/s (median), and HBM of "
        f"{machine.name} gives {machine.hbm_peak / 1e3:.0f}: they are prefetched already, or this is another device"
    )
    fix = "Name the device that the profile was taken on with hardware=NAME."
    return [Problem("warning", "above-peak", message, fix, "hardware", str(profile.source))]


def _cannot_classify(profile: "Profile") -> Problem:
    from pipeline.profile.rows import CAPTURE

    return Problem(
        "error",
        "cannot-classify",
        f"the profile ({profile.kind}) has neither shapes nor pipe ratios: no kernel can be classified, and nothing is "
        "guessed from names",
        CAPTURE[0].upper() + CAPTURE[1:] + ".",
        "profile",
        str(profile.source),
    )


def _shape_problems(profile: "Profile", found: Signatures) -> list[Problem]:
    """Kernels whose shapes contradict each other: they are told, and used without bytes."""
    problems = []
    wrong = found.table.filter(found.table["issue"].str.starts_with("inconsistent"))
    for row in wrong.head(_SHOWN).iter_rows(named=True):
        more = f" ({row['calls']} kernels)" if row["calls"] > 1 else ""
        message = f"{row['op_type']}{more}: {row['issue'].partition(': ')[2]}; its bytes count as unknown"
        at = profile.kernels["line"].filter(found.keys == row["key"])
        line = int(at[0])
        if len(at) > 1:
            message += f" (lines {', '.join(map(str, at.head(_SHOWN)))}{', ...' if len(at) > _SHOWN else ''})"
        fix = "Was the file edited, or is this operator one that we read wrongly? Then please report it."
        problems.append(Problem("warning", "inconsistent-shapes", message, fix, "profile", str(profile.source), line))
    if wrong.height > _SHOWN:
        message = f"{wrong.height - _SHOWN} more kinds of kernels have shapes that contradict each other"
        problems.append(Problem("warning", "inconsistent-shapes", message, "", "profile", str(profile.source)))
    return problems


def _step_problems(
    profile: "Profile", phase: Phase, median: MedianStep, steps: Steps, left_out: int, busy_us: float
) -> list[Problem]:
    def warn(code: str, message: str, fix: str = "") -> Problem:
        return Problem("warning", code, f"{phase.name}: {message}", fix, "profile", str(profile.source))

    problems = []
    if len(median.steps) == 1 and not median.different:
        how = "no step was found" if steps.found_by == "none" else "there is one step"
        how += ": nothing was left out as warm-up, and"
        how = "one step is left after the first:" if median.dropped else how
        message = f"{how} times are single measurements, not medians"
        problems.append(warn("one-step", message, "Profile several steps (schedule active=5 or more)."))
    if median.different:
        message = f"{median.different} steps have other kernels than the most common sequence and were left out"
        problems.append(warn("different-steps", message))
    if phase.name == "decode" and busy_us < _BUSY * median.step_us:
        message = (
            f"some kernel runs in only {100 * busy_us / median.step_us:.0f} % of the step: the rest is the host's or "
            "another rank's, and neither prefetch nor SuperKernel makes it shorter"
        )
        fix = "Decode in graph mode first; in eager mode one more prefetch costs the host 50 to 100 us."
        problems.append(warn("idle-step", message, fix))
    if left_out:
        problems.append(warn("many-targets", f"{left_out} groups of short targets were not looked at"))
    return problems
