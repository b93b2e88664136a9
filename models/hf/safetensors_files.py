"""The safetensors files of a checkpoint folder, read up to their headers: what is in them, and what is wrong."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.problems import Problem

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
READABLE = ("F32", "F16", "BF16")  # weights of a w16a16 model, or wider
_KEY = "model.path"
_INTEGERS = ("I64", "I32", "I16", "I8", "U8", "BOOL")  # of buffers such as counters and masks
_LARGEST_HEADER = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True)
class Files:
    """A folder's safetensors files.

    Attributes:
        names: file names that the index lists, or the single file; empty if there are none.
        values: stored values over all files, those that are missing included where the index says how many bytes.
        problems: everything that is wrong with the files; all are errors.
    """

    names: tuple[str, ...]
    values: int
    problems: tuple[Problem, ...]


def read_files(folder: Path) -> Files:
    """Read the index and all headers of a folder."""
    problems: list[Problem] = []
    tensors, found = _listed(folder)
    problems += found
    stored = 0
    names = sorted(set(tensors.values()))
    values = 0 if tensors == {} else _declared(folder)
    present = [name for name in names if (folder / name).is_file()]
    missing = [name for name in names if name not in present]
    if missing:
        message = f"{len(missing)} of {len(names)} files that {INDEX} names are missing: {_some(missing)}"
        problems.append(_error("missing-shard", message, "Copy the whole checkpoint.", folder))
    if not (folder / INDEX).exists() and (folder / SINGLE).is_file():
        present = names = [SINGLE]
    for name in present:
        header, found = _header(folder / name)
        problems += found
        entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
        stored += sum(_count(entry) for entry in entries.values())
        problems += _dtype_problems(folder / name, entries)
        lost = [tensor for tensor, file in tensors.items() if file == name and tensor not in entries]
        if lost and not found:
            message = f"{len(lost)} tensors that {INDEX} names are not in it: {_some(lost)}"
            problems.append(_error("missing-weight", message, "Copy the whole checkpoint.", folder / name))
    return Files(tuple(names), max(stored, values if missing else 0), tuple(problems))


def _declared(folder: Path) -> int:
    """Values over all files, from the bytes that the index says, at two bytes each; 0 if it does not say."""
    total = (json.loads((folder / INDEX).read_text(encoding="utf-8")).get("metadata") or {}).get("total_size")
    return int(total) // 2 if isinstance(total, int | float) else 0


def _listed(folder: Path) -> tuple[dict[str, str], list[Problem]]:
    """Tensor -> file as the index says."""
    index = folder / INDEX
    if not index.exists():
        return {}, []
    try:
        weights = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        listed = {str(tensor): str(file) for tensor, file in weights.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, [_error("not-json", f"the index can't be read: {type(error).__name__}: {error}", "", index)]
    outside = sorted({file for file in listed.values() if Path(file).name != file})
    if outside:
        return {}, [_error("not-json", f"the index names files of other folders: {_some(outside)}", "", index)]
    return listed, []


def _header(file: Path) -> tuple[dict[str, Any], list[Problem]]:
    size = file.stat().st_size

    def truncated(needed: int) -> Problem:
        message = f"{file.name} has {size:,} of {needed:,} bytes"
        return _error("truncated-file", message, "Copy it again.", file)

    with file.open("rb") as stream:
        start = stream.read(8)
        if len(start) < 8:
            return {}, [truncated(8)]
        (length,) = struct.unpack("<Q", start)
        if length > _LARGEST_HEADER:
            return {}, [_error("not-safetensors", "the file does not start as safetensors do", "", file)]
        text = stream.read(length)
    if len(text) < length:
        return {}, [truncated(8 + length)]
    try:
        header = json.loads(text)
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        message = f"the header can't be read: {type(error).__name__}: {error}"
        return {}, [_error("not-safetensors", message, "", file)]
    return header, [truncated(8 + length + end)] if size < 8 + length + end else []


def _dtype_problems(file: Path, entries: Mapping[str, Any]) -> list[Problem]:
    wrong = {name: str(e.get("dtype")) for name, e in entries.items() if e.get("dtype") not in (*READABLE, *_INTEGERS)}
    packed = {n: str(e["dtype"]) for n, e in entries.items() if e.get("dtype") in _INTEGERS and len(e["shape"]) > 1}
    wrong |= {name: dtype for name, dtype in packed.items() if name.endswith(("weight", "qweight"))}
    if not wrong:
        return []
    count = "1 tensor is" if len(wrong) == 1 else f"{len(wrong)} tensors are"
    message = f"{count} {', '.join(sorted(set(wrong.values())))}: {_some(sorted(wrong))}"
    fix = f"Weights are read as {', '.join(READABLE)}; dequantise the checkpoint."
    return [_error("wrong-dtype", message, fix, file)]


def _count(entry: Mapping[str, Any]) -> int:
    values = 1
    for side in entry["shape"]:
        values *= side
    return values


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _error(code: str, message: str, fix: str, file: Path) -> Problem:
    return Problem("error", code, message, fix, _KEY, str(file))
