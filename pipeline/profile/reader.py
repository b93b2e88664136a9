"""Profiler files to `Profile` tables: `read_profiles(path)` for a file, a run, or a folder of many ranks."""

import csv
import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import polars as pl

from models.problems import Problem, RefusedError
from pipeline.profile.cells import read_clean, read_lines
from pipeline.profile.columns import RATIOS, Layout, recognise
from pipeline.profile.discover import Found, Search, find
from pipeline.profile.lines import parseable
from pipeline.profile.ranks import RankTime, rank_time, slowest
from pipeline.profile.rows import CAPTURE, PARSE, Profile
from pipeline.profile.text import head, is_utf8, utf8
from pipeline.profile.trace_view import Trace, fill, read_trace
from pipeline.profile.values import line_problem, table


@dataclass(frozen=True)
class ReadOptions:
    """How to read.

    Attributes:
        trace: fill in streams and steps from trace_view.json where the table lacks them.
    """

    trace: bool = True


@dataclass(frozen=True, eq=False)
class Profiles:
    """Everything found under one path.

    Attributes:
        profiles: one per rank, device and table, by rank; at least one.
        problems: what was wrong with the files, those of `profiles` included.
    """

    profiles: tuple[Profile, ...]
    problems: tuple[Problem, ...]

    @cached_property
    def times(self) -> tuple[RankTime, ...]:
        """Measured step times of every profile."""
        return tuple(rank_time(profile) for profile in self.profiles)

    @property
    def slowest(self) -> RankTime:
        """The profile that computes longest per step; the others wait for it in their communication."""
        return slowest(self.times)


@dataclass(frozen=True)
class _Part:
    """One file's rows."""

    file: Path
    layout: Layout
    kernels: pl.DataFrame
    base_us: int
    problems: list[Problem]


def read_profiles(path: str | os.PathLike[str], options: ReadOptions | None = None) -> Profiles:
    """Read every kernel table at or under `path`.

    Args:
        path: a CSV file, an ASCEND_PROFILER_OUTPUT, an `*_ascend_pt` run, a `PROF_*` folder, or a parent of many.
        options: how to read.

    Raises:
        RefusedError: there is no kernel in any file; says what was found and how to capture.
    """
    options = options or ReadOptions()
    root = Path(os.path.expanduser(path))
    search = find(root)
    problems = list(search.problems)
    profiles: list[Profile] = []
    for found in search.tables:
        parts = [part for file in found.files if (part := _read_file(file, problems)) is not None]
        profiles += _profiles(found, [part for part in parts if part.kernels.height])
    profiles = _told_apart(profiles, root)
    if options.trace:
        profiles = _traced(profiles, problems)
    if not profiles:
        raise RefusedError([*_nothing(root, search, problems), *(p for p in problems if p.severity == "warning")])
    problems += [problem for profile in profiles for problem in profile.problems]
    return Profiles(tuple(profiles), tuple(dict.fromkeys(problems)))


def _read_file(file: Path, problems: list[Problem]) -> _Part | None:
    """Rows of one file; None, with a problem, if there is no table in it."""
    name = str(file)
    encoding, ragged = None, []
    try:
        first = head(file)
        _, skip, header = _header(first)
        layout = recognise(header)
        raw = read_clean(file, layout, skip) if layout and is_utf8(first) else None
        if raw is None:
            data, encoding = utf8(file.read_bytes())
            start, skip, header = _header(data)
            layout = recognise(header)
            if layout is not None:
                lines = parseable(data, start, skip, layout.fields)
                raw, ragged = read_lines(lines, layout), lines.ragged
                del lines
            del data  # hundreds of MB that are not needed any more
    except OSError as error:
        problems.append(Problem("warning", "unreadable-file", str(error.strerror or error), file=name))
        return None
    if layout is None or raw is None:  # the file changed since it was found
        problems.append(Problem("warning", "unreadable-file", "is no table of kernels", file=name))
        return None
    kernels, base, found = table(raw, layout, name)
    del raw
    if encoding:
        message = f"is not UTF-8; read as {encoding if encoding != 'unknown' else 'UTF-8 with bad bytes replaced'}"
        found.append(Problem("warning", "wrong-encoding", message, file=name))
    if layout.twice:
        message = f"has two columns {', '.join(dict.fromkeys(layout.twice))}; the first is used"
        found.append(Problem("warning", "column-twice", message, file=name, line=skip))
    by_count: dict[int, list[int]] = {}
    for number, fields in ragged:
        by_count.setdefault(fields, []).append(number)
    for fields, numbers in sorted(by_count.items()):
        what = f"has {fields} fields instead of {layout.fields}" if fields >= 0 else "has quotes that don't match"
        found.append(line_problem(name, numbers, "ragged-row", what + " and was left out"))
    if not kernels.height:
        problems += [*found, Problem("warning", "no-kernels", "has a header but no kernel", file=name)]
    return _Part(file, layout, kernels, base, found)


def _header(data: bytes) -> tuple[int, int, list[str]]:
    """Byte at which the body starts, number of lines before it, and the names in the first line that isn't blank."""
    start = skip = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        line, start, skip = data[start:end], end, skip + 1
        if line.strip():
            try:
                return start, skip, next(csv.reader([line.decode("utf-8", "replace").rstrip("\r\n")]), [])
            except csv.Error:
                return start, skip, []
    return start, skip, []


def _profiles(found: Found, parts: list[_Part]) -> list[Profile]:
    """The parts of one table joined, then one profile per device in it."""
    if not parts:
        return []
    base = min(part.base_us for part in parts)
    joined = [
        part.kernels.with_columns(pl.col("start_us") + float(part.base_us - base), part=pl.lit(at, pl.UInt32))
        for at, part in enumerate(parts)
    ]
    kernels = pl.concat(joined, rechunk=False)
    devices = sorted(kernels["device"].unique(), key=lambda device: (device is None, device))
    layout = parts[0].layout
    profiles = []
    for device in devices:
        mine = kernels.filter(pl.col("device").eq_missing(device)) if len(devices) > 1 else kernels
        first = [int((mine["part"] < at).sum()) for at in range(len(parts))]
        mine = mine.drop("part")
        profiles.append(
            Profile(
                source=parts[0].file,
                rank=found.rank,
                device=device,
                kind=layout.kind,
                layout=layout.tool,
                base_us=base,
                kernels=mine,
                problems=tuple(problem for part in parts for problem in part.problems),
                has_shapes=mine["input_shapes"].null_count() < mine.height,
                has_ratios=any(mine[name].null_count() < mine.height for name in RATIOS if "mte2" in name),
                files=tuple(part.file for part in parts),
                first_rows=tuple(first),
            )
        )
    return profiles


def _told_apart(profiles: list[Profile], root: Path) -> list[Profile]:
    """Profiles of the same rank and device, as of two captures, told apart by their folder."""
    times = Counter((profile.rank, profile.device) for profile in profiles)
    return [
        replace(profile, where=profile.source.relative_to(root).parent.as_posix())
        if times[profile.rank, profile.device] > 1 and root in profile.source.parents
        else profile
        for profile in profiles
    ]


def _traced(profiles: list[Profile], problems: list[Problem]) -> list[Profile]:
    """Profiles without any stream or any step, with those of the trace beside them."""
    traces: dict[Path, Trace] = {}
    full = []
    for profile in profiles:
        path = profile.source.parent / "trace_view.json"
        lacks = any(profile.kernels[name].null_count() == profile.kernels.height for name in ("stream", "step"))
        if lacks and path.is_file():
            if path not in traces:
                traces[path] = read_trace(path)
                problems += traces[path].problems
            profile = replace(profile, kernels=fill(profile.kernels, profile.base_us, traces[path]))
        full.append(profile)
    return full


def _nothing(root: Path, search: Search, problems: list[Problem]) -> list[Problem]:
    """Why there is nothing to analyse."""
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        return errors
    other = list(dict.fromkeys(search.other))
    shown = "; ".join(other[:8]) + (f"; and {len(other) - 8} more" if len(other) > 8 else "")
    message = f"no kernel of a profile in {root}. Found: {shown or ('no CSV file' if root.is_dir() else 'no kernel')}"
    fix = CAPTURE
    if any(name.startswith("PROF_") for name in other):
        fix = f"{PARSE}; or {CAPTURE}"
    return [Problem("error", "no-profile", message, fix, key="profile")]
