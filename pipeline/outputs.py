"""The output directory: where it is, that it can be written, and files that are whole or absent.

Only `run` creates one. A file appears under its name only when all of it is on disk (temporary file, then rename).
"""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from models.problems import Problem, RefusedError

# Free space asked for before anything runs: one trial's files are about 2 MiB, its timeline the largest of them.
BYTES_PER_TRIAL = 4 * 2**20
BYTES_PER_SWEEP = 8 * 2**20


def write_texts(directory: Path, files: Mapping[str, str]) -> None:
    """Write several files, each atomically; folders are made.

    Args:
        directory: where they go.
        files: path below it -> text.

    Raises:
        OSError: the directory cannot be written.
    """
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically.

    Raises:
        OSError: nothing is left behind under either name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(3)}")
    try:
        # A path may hold bytes that are no text (another locale): they are shown, and never an error.
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically, in the order of the mapping, one key a line."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False, default=str) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file, None if it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_status(directory: Path, status: str, **details: Any) -> None:
    """status.json: `queued`, `running`, `done` or `failed`, with the key, the stage and the error."""
    write_json(directory / "status.json", {"status": status, "time": now(), **details})


def now() -> str:
    """Local time with its offset, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def create(root: Path, sweep: bool) -> Path:
    """Make a new, empty experiment directory below `root`.

    Returns:
        `root/<date>/<time>-<id>` or `root/multirun/<date>/<time>-<id>`, absolute. The id is random, and a name that
        another process took in the same second is never shared.
    """
    started = datetime.now()
    parent = root.resolve() / ("multirun" if sweep else "") / started.strftime("%Y-%m-%d")
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        path = parent / f"{started.strftime('%H-%M-%S')}-{secrets.token_hex(3)}"
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path


def check_writable(root: Path, trials: int) -> None:
    """Refuse an output directory that can't take the results. Leaves nothing behind.

    Raises:
        RefusedError: it is no directory, read-only, or has too little space.
    """
    created: list[Path] = []
    probe = root / f".probe-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        for folder in reversed([root, *root.parents]):
            if not folder.exists():
                folder.mkdir()
                created.append(folder)
        needed = BYTES_PER_SWEEP + BYTES_PER_TRIAL * trials
        free = shutil.disk_usage(root).free
        if free < needed:
            raise _refusal(root, f"has {free / 2**20:.0f} MiB free, and {needed / 2**20:.0f} MiB are needed")
        with open(probe, "wb") as file:
            file.write(bytes(65536))
            file.flush()
            os.fsync(file.fileno())
    except OSError as e:
        raise _refusal(root, f"can't be written: {e.strerror or e}") from e
    finally:
        for path, remove in [(probe, Path.unlink), *((folder, Path.rmdir) for folder in reversed(created))]:
            _quietly(remove, path)


def writable_problems(root: Path, trials: int) -> list[Problem]:
    """What `check_writable` refuses, as a list."""
    try:
        check_writable(root, trials)
    except RefusedError as refused:
        return list(refused.problems)
    return []


def _quietly(remove: Callable[[Path], None], path: Path) -> None:
    with contextlib.suppress(OSError):
        remove(path)


def _refusal(root: Path, why: str) -> RefusedError:
    fix = "Choose another place with output=DIR."
    return RefusedError([Problem("error", "output-not-writable", f"the output directory {root} {why}", fix, "output")])
