"""Kernel tables under a path: a file, a run of torch_npu or msprof, or a parent of many ranks.

Names get changed by wrappers, so every CSV file is asked by its header what it is.
"""

import csv
import difflib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from models.problems import Problem
from pipeline.profile.columns import Layout, missing, recognise
from pipeline.profile.text import head_text

DEPTH = 12
FOLDERS = 100_000
SLICE = re.compile(r"^(?P<stem>.*)_slice_(?P<number>\d+)(?P<rest>.*)$")
EXPORT = re.compile(r"^op_summary(_slice_\d+)?_(?P<time>\d+)$")
OUTPUTS = ("ASCEND_PROFILER_OUTPUT", "mindstudio_profiler_output")  # inside a run
RANK = re.compile(r"(?:^|[_\-.])rank[_\-]?(\d+)(?=$|[_\-.])", re.IGNORECASE)
INFO = re.compile(r"^profiler_info(?:_(\d+))?\.json$")


@dataclass(frozen=True)
class Found:
    """One kernel table: a file, or the slices of one in order.

    Attributes:
        files: its files.
        rank: the run's rank, None if nothing says it.
    """

    files: tuple[Path, ...]
    rank: int | None


@dataclass
class Search:
    """What a search came across.

    Attributes:
        tables: kernel tables, in order of rank, then path.
        problems: unreadable folders and files.
        other: what else there is, for the message when no table is found.
    """

    tables: list[Found] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    other: list[str] = field(default_factory=list)


def find(path: Path) -> Search:
    """Kernel tables at or under `path`. Links are followed, each folder is visited once."""
    search = Search()
    try:
        exists = path.exists()
    except OSError as error:  # a name too long, a parent that may not be entered
        message = f"{str(path)[:200]}: {error.strerror or error}"
        search.problems.append(Problem("error", "profile-not-found", message, "check the path", key="profile"))
        return search
    if not exists:
        search.problems.append(_missing(path))
        return search
    if path.is_file():
        found = _layout(path, search)
        if found:
            search.tables.append(Found((path,), rank_of(path, search)))
        return search
    if not path.is_dir():
        search.problems.append(
            Problem("error", "profile-not-a-file", f"{path} is neither a file nor a folder", key="profile")
        )
        return search
    tables: dict[Path, list[tuple[Path, Layout]]] = {}
    seen: set[Path] = set()
    for folder in _folders(path, search):
        for file in sorted(entry for entry in _entries(folder, search) if entry.suffix.lower() == ".csv"):
            layout = _layout(file, search)
            if layout and (real := file.resolve()) not in seen:
                seen.add(real)
                tables.setdefault(_run(file, path), []).append((file, layout))
    for files in tables.values():
        tools = {layout.tool for _, layout in files}
        # msprof's table of a run lies beside torch_npu's of the same run: the latter has the steps.
        wanted = [file for file, layout in files if len(tools) == 1 or layout.tool == "kernel_details"]
        search.tables += [Found(group, rank_of(group[0], search)) for group in _grouped(wanted, search)]
    search.tables.sort(key=lambda table: (table.rank is None, table.rank or 0, str(table.files[0])))
    return search


def rank_of(file: Path, search: Search) -> int | None:
    """The rank that profiler_info beside the run says, else the one in the name of a folder or of the file."""
    folder = file.absolute().parent
    run = [folder]
    while run[-1].name in OUTPUTS or run[-1].name.startswith("PROF_"):
        run.append(run[-1].parent)
    for folder in run:
        for entry in sorted(_entries(folder, search)):
            match = INFO.match(entry.name)
            if match:
                return _told_rank(entry, match, search)
    for name in (file.stem, *(folder.name for folder in run), run[-1].parent.name):
        match = RANK.search(name)
        if match:
            return int(match.group(1))
    return None


def _told_rank(file: Path, match: re.Match[str], search: Search) -> int | None:
    try:
        rank = json.loads(file.read_text(encoding="utf-8"))["rank_id"]
        if isinstance(rank, int) and rank >= 0:
            return rank
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        what = f"rank not readable: {type(error).__name__}: {error}"
        search.problems.append(Problem("warning", "profiler-info-unreadable", what, file=str(file)))
    return int(match.group(1)) if match.group(1) else None


def _layout(file: Path, search: Search) -> Layout | None:
    """The file's layout if it is a kernel table; else what it is goes to `search.other`."""
    try:
        text = head_text(file)
    except OSError as error:
        search.problems.append(Problem("warning", "unreadable-file", f"{error.strerror or error}", file=str(file)))
        return None
    first = next((line for line in text.splitlines() if line.strip()), "")
    try:
        header = next(csv.reader([first]), [])
    except csv.Error:
        header = []
    layout = recognise(header)
    if layout is None:
        search.other.append(f"{file.name} ({_described(text, header)})")
    return layout


def _described(text: str, header: list[str]) -> str:
    """What a file is that is no kernel table."""
    if not text.strip():
        return "empty"
    if not all(char.isprintable() or char in "\t\r\n" for char in text[:1000]):
        return "not text"
    if text.lstrip()[0] in "[{":
        return "JSON"
    names = ", ".join(name.strip()[:40] for name in header[:6])
    return f"columns {names}{', ...' if len(header) > 6 else ''}, of which {', '.join(missing(header))} missing"


def _folders(root: Path, search: Search) -> Iterator[Path]:
    """Folders under `root`, itself first, each once even if links lead back."""
    seen: set[tuple[int, int]] = set()
    todo = [(root, 0)]
    while todo and len(seen) < FOLDERS:
        folder, depth = todo.pop()
        try:
            stat = folder.stat()
        except OSError as error:
            search.problems.append(
                Problem("warning", "unreadable-folder", f"{error.strerror or error}", file=str(folder))
            )
            continue
        if (stat.st_dev, stat.st_ino) in seen:
            continue
        seen.add((stat.st_dev, stat.st_ino))
        yield folder
        if depth < DEPTH:
            inner = [entry for entry in _entries(folder, search, folders=True)]
            todo += [(entry, depth + 1) for entry in sorted(inner, reverse=True)]
            search.other += [f"{entry.name}/" for entry in inner if entry.name.startswith("PROF_")]
    if todo:
        message = f"over {FOLDERS} folders under {root}: the rest was not searched"
        search.problems.append(Problem("warning", "too-many-folders", message, "name a folder further down"))


def _entries(folder: Path, search: Search, folders: bool = False) -> list[Path]:
    """Files of a folder, or its folders."""
    try:
        with os.scandir(folder) as entries:
            return [folder / e.name for e in entries if (e.is_dir() if folders else e.is_file())]
    except OSError as error:
        search.problems.append(Problem("warning", "unreadable-folder", f"{error.strerror or error}", file=str(folder)))
        return []


def _run(file: Path, root: Path) -> Path:
    """The folder of the run a file belongs to: the outermost `*_ascend_pt`, else the `PROF_*`, else its own."""
    inside = [folder for folder in file.parents if folder == root or root in folder.parents]
    for folder in inside:
        if folder.name.endswith("_ascend_pt"):
            return folder
    for folder in inside:
        if folder.name.startswith("PROF_"):
            return folder
    return file.parent


def _grouped(files: list[Path], search: Search) -> list[tuple[Path, ...]]:
    """Slices of one table together, in order; of several exports in one folder only the latest."""
    latest: dict[Path, str] = {}
    for file in files:
        if export := EXPORT.match(file.stem):
            latest[file.parent] = max(latest.get(file.parent, ""), export["time"], key=lambda time: (len(time), time))
    groups: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for file in files:
        export = EXPORT.match(file.stem)
        if export and export["time"] != latest[file.parent]:
            message = f"an earlier export of the same run; the one of {latest[file.parent]} is used"
            search.problems.append(Problem("warning", "earlier-export", message, file=str(file)))
            continue
        match = SLICE.match(file.stem)
        key = f"{match['stem']}{match['rest']}" if match else file.name
        groups.setdefault((file.parent, key), []).append((int(match["number"]) if match else 0, file))
    return [tuple(file for _, file in sorted(group)) for group in groups.values()]


def _missing(path: Path) -> Problem:
    names = [entry.name for files in (True, False) for entry in _entries(path.parent, Search(), files)]
    near = difflib.get_close_matches(path.name, names, n=3)
    fix = f"did you mean {', '.join(str(path.parent / name) for name in near)}?" if near else "check the path"
    return Problem("error", "profile-not-found", f"{path} does not exist", fix, key="profile")
