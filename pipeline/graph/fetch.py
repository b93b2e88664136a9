"""Gets the NPU front end: `python -m pipeline.graph.fetch [--again] [--folder PATH]`.

pip installs the torch_npu wheel of the installed torch, without its dependencies, into a new folder, which takes the
place of the old one only when it is complete. Run twice, the second time does nothing.
"""

import argparse
import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.graph.folder import (
    COMPANIONS,
    BrokenFrontEndError,
    FrontEnd,
    NoFrontEndError,
    check_folder,
    default_folder,
    torch_release,
)


class FetchError(Exception):
    """The front end could not be had. The message says why."""


def fetch(
    folder: Path | None = None, again: bool = False, pip: Sequence[str] = (sys.executable, "-m", "pip")
) -> FrontEnd:
    """Make the folder, or keep it if it is in order.

    Args:
        folder: instead of `default_folder()`.
        again: replace a folder that is in order, too.
        pip: command that installs.

    Raises:
        FetchError: pip failed (no network, no wheel for this Python or machine), or what came is incomplete.
    """
    folder = folder or default_folder()
    if not again:
        try:
            return check_folder(folder)
        except (NoFrontEndError, BrokenFrontEndError):
            pass
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise FetchError(f"can't write beside {folder}: {error}") from error
    try:
        _install(fresh, pip)
        try:
            check_folder(fresh)
            _check_contents(fresh)
        except (NoFrontEndError, BrokenFrontEndError) as error:
            raise FetchError(f"what pip installed can't be used: {error}") from error
        (fresh / ".gitignore").write_text("*\n")  # it may lie in a checkout
        _replace(folder, fresh)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return check_folder(folder)


def _install(target: Path, pip: Sequence[str]) -> None:
    wheel = f"torch-npu=={torch_release()}"
    command = [*pip, "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(target)]
    done = subprocess.run([*command, wheel, *COMPANIONS], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines[-3:] or ["no message"]
        hint = "(no network, or no wheel for this Python and machine?)"
        raise FetchError(f"pip could not install {wheel} {hint}: {' '.join(errors)}")


def _check_contents(folder: Path) -> None:
    """Compare every file of torch_npu with the digest that came with it."""
    (info,) = folder.glob("torch_npu-*.dist-info")
    for name, digest, _ in csv.reader((info / "RECORD").read_text().splitlines()):
        kind, _, expected = digest.partition("=")
        if kind != "sha256" or not name.startswith("torch_npu"):
            continue
        with (folder / name).open("rb") as file:
            real = base64.urlsafe_b64encode(hashlib.file_digest(file, "sha256").digest()).rstrip(b"=").decode()
        if real != expected:
            raise BrokenFrontEndError(f"{name} was damaged on its way")


def _replace(folder: Path, fresh: Path) -> None:
    """Put `fresh` where `folder` is. Who is late finds the other's work, and keeps it if it is in order."""
    old = fresh.with_name(f"{fresh.name}-old")
    try:
        if folder.exists() or folder.is_symlink():
            os.rename(folder, old)
        os.rename(fresh, folder)
    except OSError as error:
        try:
            check_folder(folder)
        except (NoFrontEndError, BrokenFrontEndError):
            raise FetchError(f"can't put the front end at {folder}: {error}") from error
    finally:
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 if the front end is there afterwards, else 1."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.graph.fetch", description=__doc__)
    parser.add_argument("--again", action="store_true", help="replace a folder that is in order, too")
    parser.add_argument("--folder", type=Path, default=None, help=f"default: {default_folder()}")
    options = parser.parse_args(arguments)
    try:
        front_end = fetch(options.folder, options.again)
    except FetchError as error:
        print(f"error: {error}\nWithout it the graph rung says `not_run`; everything else works.", file=sys.stderr)
        return 1
    print(f"torch_npu {front_end.version} in {front_end.path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
