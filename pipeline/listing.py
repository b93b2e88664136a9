"""`list`: what can be chosen, with one line each. Reads the first comment line of the files, loads nothing."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.hf.types import GROUP
from models.problems import Problem, RefusedError, hint
from pipeline.compose import CONF, options
from pipeline.environment import ROOT

_SECTIONS = {
    "models": "model",
    "recipes": "recipe",
    "deployments": "deployment",
    "hardware": "hardware",
    "runtimes": "runtime",
    "backends": "backend",
}


def listing(only: Sequence[str] = (), folders: Sequence[Path] = (CONF,)) -> dict[str, list[dict[str, str]]]:
    """Section -> entries with `name`, `description`, `file`.

    Args:
        only: sections to list, singular or plural; empty for all.

    Raises:
        RefusedError: there is no such section.
    """
    wanted = [_section(name) for name in only]
    found = {
        section: [
            {"name": name, "description": _first_comment(path), "file": _shown(path)}
            for name, path in options(group, folders).items()
        ]
        for section, group in _SECTIONS.items()
        if not wanted or section in wanted
    }
    if GROUP in wanted:
        found[GROUP] = _transformers_types()
    if not wanted or "transforms" in wanted:
        found["transforms"] = _transforms()
    return found


def as_text(found: dict[str, list[dict[str, str]]]) -> Any:
    """The listing as a rich renderable, a block per section."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    blocks: list[Any] = []
    for section, entries in found.items():
        table = Table.grid(padding=(0, 2))
        for entry in entries:
            table.add_row("", Text(entry["name"], style="bold"), Text(entry["description"]))
        blocks += [Text(section, style="underline"), table, Text("")]
    return Group(*blocks[:-1])


def _section(name: str) -> str:
    known = [*_SECTIONS, "transforms", GROUP]
    for section in known:
        if name in (section, _SECTIONS.get(section), section.rstrip("s")):
            return section
    message = f"there is nothing like `{name}` to list.{hint(name, known)}"
    raise RefusedError([Problem("error", "unknown-group", message, f"Known: {', '.join(known)}.")])


def _transforms() -> list[dict[str, str]]:
    from transforms.registry import TRANSFORMS  # brings torch and LibCST along: only when they are listed

    return [
        {"name": name, "description": entry.doc.rstrip("."), "file": entry.realise.__module__.replace(".", "/") + ".py"}
        for name, entry in sorted(TRANSFORMS.items())
    ]


def _transformers_types() -> list[dict[str, str]]:
    """What `model=hf/<model_type>` can be; only when asked for, as it imports transformers."""
    from models.hf.types import causal_lm_types, class_name

    return [{"name": f"{GROUP}/{name}", "description": class_name(name), "file": ""} for name in causal_lm_types()]


def _first_comment(path: Path) -> str:
    """The first comment of a YAML file, up to the end of its first sentence."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text.startswith("#") and text.strip("# "):
            lines.append(text.strip("# "))
        elif lines:
            break
    text = " ".join(lines)
    match = re.match(r".*?\.(?=\s|$)", text)
    return match[0].rstrip(".") if match else text


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
