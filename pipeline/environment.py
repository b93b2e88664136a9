"""What decides a result besides the configuration: versions, sources, machine. And the trial key made of it."""

import hashlib
import json
import os
import platform
import socket
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from models.problems import Problem
from pipeline.model_files import model_files
from pipeline.replay.backend import profile_files

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("models", "transforms", "pipeline")
# Libraries whose version can change a plan, a diff or a modelled figure.
KEY_LIBRARIES = ("torch", "numba", "numpy", "scipy", "transformers", "libcst", "omegaconf", "hydra-core")
_OTHERS = ("ruamel.yaml", "matplotlib", "jinja2", "polars", "rich", "torch-npu")
# Keys that say where and how to run, not what.
_NOT_DECISIVE = ("format", "output", "trial", "sweep", "profile", "tree", "write", "revert", "hydra")


def trial_key(config: Mapping[str, Any]) -> str:
    """16 hex digits over everything that decides a trial's result: resolved configuration, sources, versions.

    Args:
        config: plain and resolved; a `hydra` part is left out.
    """
    parts = {"config": config_hash(config), "sources": source_hashes(), "versions": key_versions()}
    files = input_files(config)
    return _digest(parts | ({"input_files": files} if files else {}))


def input_files(config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> hash of what decides the result and is not in our tree: a model's source, a checkpoint, a profile."""
    return model_files(config) | profile_files(config)


def config_hash(config: Mapping[str, Any]) -> str:
    """16 hex digits over the part of the configuration that decides the result."""
    return _digest({key: value for key, value in config.items() if key not in _NOT_DECISIVE})


def environment(
    config: Mapping[str, Any], command: str, config_files: Mapping[str, Path], folders: Sequence[Path] = ()
) -> dict[str, Any]:
    """The content of environment.json.

    Args:
        config: of the trial, plain and resolved.
        command: the command line, as a shell would read it.
        config_files: group -> the YAML file of its option.
        folders: config folders; those beside our own are noted.
    """
    return {
        "key": trial_key(config),
        "config_hash": config_hash(config),
        "command": command,
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "device": "cpu",
        "cpus": os.cpu_count(),
        "working_directory": os.getcwd(),
        "versions": versions(),
        "git": git(),
        "config_files": {g: {"file": _relative(p), "sha256": file_hash(p)} for g, p in config_files.items()},
        "config_dirs": [_relative(f) for f in folders if f.resolve() != ROOT / "conf"],
        "sources": source_hashes(),
        "input_files": input_files(config),
    }


@cache
def versions() -> dict[str, str]:
    """Python's and the libraries' versions; those not installed are left out."""
    return key_versions() | _installed(_OTHERS)


@cache
def key_versions() -> dict[str, str]:
    """The versions that can change a result."""
    return {"python": platform.python_version()} | _installed(KEY_LIBRARIES)


@cache
def source_hashes() -> dict[str, str]:
    """Our own source files, relative to the repository, with the first 16 hex digits of their SHA-256."""
    files = [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*")) if p.suffix in (".py", ".j2")]
    return {_relative(path): file_hash(path) for path in files if "__pycache__" not in path.parts}


@cache
def git() -> dict[str, str] | None:
    """Commit and uncommitted changes of our own repository; None outside one."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "diff": _git("diff", "HEAD"), "status": _git("status", "--porcelain")}


def file_hash(path: Path) -> str:
    """First 16 hex digits of a file's SHA-256, "" if it is gone."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def interpreter_problems() -> list[Problem]:
    """What keeps this interpreter from rewriting source: it needs the column of every call."""
    code = compile("f(x)", "<check>", "eval")
    if all(column is not None for _, _, column, _ in code.co_positions()):
        return []
    message = "this Python runs without column positions, so the calls in a model's source can't be found"
    fix = "Run it without -X no_debug_ranges and without PYTHONNODEBUGRANGES, or use transform=wrap."
    return [Problem("error", "no-call-positions", message, fix)]


def locate(recorded: str) -> Path:
    """The file that `environment.json` names: relative names are below the repository."""
    return ROOT / recorded


def command_line(tokens: list[str]) -> str:
    """`npu-recipes ...` as it can be pasted into a shell."""
    import shlex

    return shlex.join(["npu-recipes", *tokens])


def _relative(path: Path) -> str:
    path = path.resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def _installed(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _digest(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
