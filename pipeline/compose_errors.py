"""What goes wrong in composing a configuration, in our words, with the file and line it comes from."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.problems import Problem, hint
from pipeline.config_files import options
from pipeline.yaml_source import YamlSource

# As Hydra words it.
_UNKNOWN_DEFAULT = re.compile(r"In '(?P<holder>[^']+)': Could not (?:load|find) '(?P<wanted>[^']+)'")


def yaml_problem(error: Any) -> Problem:
    """Of an error that the YAML reader raised."""
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error)
    file, line = (mark.name, mark.line + 1) if mark else (getattr(error, "name", None), None)
    fix = ""
    if not mark and hasattr(error, "reason"):
        what = f"{error.reason} (position {error.position})"
    elif "'{'" in what:
        fix = "Inside { } and [ ], quote a path that holds braces: {weight: 'layers.{i}.x'}."
    return Problem("error", "not-yaml", f"this is not YAML: {what}", fix, None, file, line)


def hydra_problem(error: Exception) -> Problem:
    """Of an error that Hydra or OmegaConf raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    key = getattr(error, "full_key", None) or None
    text = lines[0] if lines else type(error).__name__
    if error.__cause__ is not None and str(error.__cause__):
        text += f" ({str(error.__cause__).splitlines()[0]})"
    fix = ""
    if "hydra/launcher" in str(error):
        fix = "Install the launcher, e.g. pip install hydra-joblib-launcher (submitit and ray have theirs)."
    return Problem("error", "cannot-compose", f"the configuration can't be composed: {text}", fix, key)


def placed_default(problem: Problem, folders: Sequence[Path]) -> Problem:
    """A problem about an entry of a defaults list that names no file, with the file and line of that entry."""
    found = _UNKNOWN_DEFAULT.search(problem.message)
    if found is None:
        return problem
    wanted = found["wanted"]
    group, _, option = wanted.partition("/")
    file = next((f for folder in folders if (f := folder / f"{found['holder']}.yaml").is_file()), None)
    texts = _default_texts(file) if file else []
    at = next((k for k, text in enumerate(texts) if f"/{wanted}".endswith(f"/{text.lstrip('/').split('@')[0]}")), None)
    line = YamlSource(file, group).line(f"{group}.defaults.{at}") if file and at is not None else None
    near = hint(option, list(options(group, folders)))
    return replace(
        problem,
        code="unknown-default",
        message=f"the defaults list names `{wanted}`, and there is no such file.{near}",
        fix=f"What is inherited is written /{group}/NAME@_here_.",
        key=f"{group}.defaults",
        file=str(file) if file else None,
        line=line,
    )


def without_here(file: Path, group: str) -> tuple[str, int | None] | None:
    """The first entry of a file's defaults list that lacks `@_here_`, and its line; None if there is none."""
    for k, text in enumerate(_default_texts(file)):
        if text != "_self_" and "@" not in text:
            return text, YamlSource(file, group).line(f"{group}.defaults.{k}")
    return None


def _default_texts(file: Path) -> list[str]:
    """Entries of a defaults list, `group: option` as `group/option`; empty if there is no such list."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        data = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException):
        return []
    entries = data.get("defaults") if isinstance(data, dict) else None
    texts = []
    for entry in entries if isinstance(entries, list) else ():
        pairs = [f"{k}/{v}" for k, v in entry.items()] if isinstance(entry, dict) else [str(entry)]
        texts.append(pairs[0] if pairs else "")
    return texts
