"""A checkpoint folder's config.json: which model it is, and why it can't be used."""

import json
from pathlib import Path
from typing import Any

from models.hf.types import GROUP, causal_lm_types, type_problem
from models.problems import Problem, RefusedError

_KEY = "model.path"


def read_folder(path: str) -> tuple[str, dict[str, Any]]:
    """Model type and content of a folder's config.json.

    Args:
        path: of the folder; `~` is expanded.

    Raises:
        RefusedError: no folder, no config.json, not JSON, no or an unknown model type, code of its own.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise _refused("no-checkpoint", f"{folder} {what}", "Give a folder with a config.json.")
    file = folder / "config.json"
    if not file.is_file():
        below = sorted(p.parent.name for p in folder.glob("*/config.json"))
        fix = f"There is one in {', '.join(below[:3])} below it." if below else "Give a folder with a config.json."
        raise _refused("no-config-json", f"{folder} has no config.json", fix)
    stored = _read(file)
    remote = stored.get("auto_map")
    model_type = stored.get("model_type")
    if remote:
        raise RefusedError([_remote_code(file, model_type)])
    if not isinstance(model_type, str):
        fix = f"Add it, or use model={GROUP}/<model_type> with model.config fields."
        raise _refused("no-model-type", "config.json says no `model_type`", fix, file)
    problem = type_problem(model_type, _KEY, str(file))
    if problem is not None:
        raise RefusedError([problem])
    return model_type, stored


def _read(file: Path) -> dict[str, Any]:
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        problem = Problem("error", "not-json", f"config.json can't be read: {error}", "", _KEY, str(file), line)
        raise RefusedError([problem]) from error
    if not isinstance(stored, dict):
        raise _refused("not-json", "config.json is not an object", "It must be {...}.", file)
    return stored


def _remote_code(file: Path, model_type: Any) -> Problem:
    message = "config.json names code of its own (`auto_map`), and code from a checkpoint is never run"
    if model_type in causal_lm_types():
        fix = f"transformers has {model_type} itself: in a copy of the folder, remove `auto_map` to use that."
    else:
        fix = f"The installed transformers has no model type {model_type!r} of its own; a newer one may."
    return Problem("error", "remote-code", message, fix, _KEY, str(file))


def _refused(code: str, message: str, fix: str, file: Path | None = None) -> RefusedError:
    return RefusedError([Problem("error", code, message, fix, _KEY, str(file) if file else None)])
