"""`reproduce DIR`: run a trial again from its own directory and say what differs.

The configuration comes from DIR/.hydra, plain YAML, so nothing that was typed matters any more. Whether it, a recipe
or a source was edited since is known from the hashes in environment.json.
"""

import contextlib
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.problems import Problem, RefusedError
from pipeline import outputs
from pipeline.compose import CONF, hydra
from pipeline.environment import (
    config_hash,
    file_hash,
    git,
    input_files,
    key_versions,
    locate,
    source_hashes,
    versions,
)
from pipeline.progress import say

# Modelled figures are equal to the last bit, unless a library that computes them has another version.
_TOLERANCE_OTHER_VERSIONS = 1e-9
_SHOWN = 20  # differences in text


def reproduce(directory: Path, folders: Sequence[Path] = (CONF,)) -> dict[str, Any]:
    """Run the trial (or every trial of the sweep) of a directory again and compare.

    Returns:
        `same`, `differences[]`, and beside them `environment_differences[]` (other versions, another commit), which do
        not count. Of a sweep: `same` and `trials[]`, each such an object.

    Raises:
        RefusedError: the directory is no output directory.
    """
    directory = directory.resolve()
    if (directory / "ledger.jsonl").exists():
        trials = [reproduce(path.parent, folders) for path in sorted(directory.glob("*/status.json"))]
        different = [d for trial in trials for d in trial["differences"]]
        same = bool(trials) and all(t["same"] for t in trials)
        return {"status": "ok", "directory": str(directory), "same": same, "differences": different, "trials": trials}
    recorded, config, environment = _read(directory)
    folders = _with_recorded(folders, environment)
    differences = [*_edited_config(config, environment), *_edited_files(config, environment)]
    differences += _recomposed(directory, config, folders, environment)
    beside = _environment(environment)
    say(f"running {directory.name} again")
    with tempfile.TemporaryDirectory(prefix="npu-recipes-") as folder:
        place = Path(folder)
        try:
            _rerun(config, place, environment)
        except RefusedError as refused:
            differences += [_difference("run", "refused now", None, str(p)) for p in refused.problems]
        except Exception as error:
            differences.append(_difference("run", "fails now", recorded, f"{type(error).__name__}: {error}"))
        else:
            tolerance = 0.0 if environment.get("versions") == versions() else _TOLERANCE_OTHER_VERSIONS
            differences += _compare(directory, place, tolerance)
    return {
        "status": "ok",
        "directory": str(directory),
        "same": not differences,
        "differences": differences,
        "environment_differences": beside,
    }


def reproduction_view(data: Mapping[str, Any]) -> str:
    """The result as text."""
    lines = [f"same: {'yes' if data['same'] else 'NO'}    {data['directory']}"]
    if "trials" in data:
        for trial in data["trials"]:
            lines += ["", reproduction_view(trial)]
        return "\n".join(lines)
    for d in data["differences"][:_SHOWN]:
        values = f": {_short(d['before'])} -> {_short(d['after'])}" if d["before"] or d["after"] else ""
        lines.append(f"  {d['what']}: {d['where']}{values}")
    if len(data["differences"]) > _SHOWN:
        lines.append(f"  and {len(data['differences']) - _SHOWN} more (format=json lists all)")
    if data["same"]:
        lines.append("  plan, diff and modelled metrics are equal")
    if data["environment_differences"]:
        lines.append("  beside it, the environment differs:")
        for d in data["environment_differences"]:
            lines.append(f"    {d['where']}: {_short(d['before'])} -> {_short(d['after'])}")
    return "\n".join(lines)


def _with_recorded(folders: Sequence[Path], environment: Mapping[str, Any]) -> tuple[Path, ...]:
    """The folders that are given, then those that the trial ran with, then our own."""
    noted = [path for name in environment.get("config_dirs") or () if (path := locate(str(name))).is_dir()]
    return tuple(dict.fromkeys([*(f for f in folders if f != CONF), *noted, CONF]))


def _read(directory: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Status, configuration and environment of a finished trial's directory."""
    status = outputs.read_json(directory / "status.json")
    environment = outputs.read_json(directory / "environment.json")
    if not isinstance(status, dict) or not isinstance(environment, dict):
        why = "does not exist" if not directory.exists() else "has no status.json and environment.json"
        fix = "Give the directory of a trial (outputs/<date>/<time>-<id>), or of one trial inside a sweep."
        raise RefusedError([Problem("error", "no-trial", f"{directory} {why}", fix)])
    if not (directory / "plan.json").exists():
        message = f"the trial in {directory} is {status.get('status')} and has no plan to compare with"
        raise RefusedError([Problem("error", "unfinished-trial", message, str(status.get("error", "")))])
    return str(status.get("status")), _compose_recorded(directory / ".hydra"), environment


def _compose_recorded(folder: Path) -> dict[str, Any]:
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"), resolve=True)
    except (OSError, yaml.YAMLError, OmegaConfBaseException) as error:
        message = f"can't read the configuration: {str(error).splitlines()[0]}"
        raise RefusedError([Problem("error", "no-config", message, "", None, str(folder / "config.yaml"))]) from error
    if not isinstance(config, dict):
        message = "the recorded configuration is not a mapping"
        raise RefusedError([Problem("error", "no-config", message, "", None, str(folder / "config.yaml"))])
    return {str(key): value for key, value in config.items()}


def _edited_config(config: Mapping[str, Any], environment: Mapping[str, Any]) -> list[dict[str, Any]]:
    before, after = environment.get("config_hash"), config_hash(config)
    where = ".hydra/config.yaml was edited after the run"
    return [] if before == after else [_difference("config", where, before, after)]


def _edited_files(config: Mapping[str, Any], environment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Recipes, other configuration files and sources that are not what they were."""
    found = []
    for group, entry in (environment.get("config_files") or {}).items():
        after = file_hash(locate(entry["file"]))
        if after != entry["sha256"]:
            found.append(_difference(group, f"{entry['file']} {_changed(after)}", entry["sha256"], after))
    before = {**(environment.get("sources") or {}), **(environment.get("input_files") or {})}
    now = source_hashes() | input_files(config)
    for file in sorted(set(before) | set(now)):
        if before.get(file) != now.get(file):
            what = "is new since the run" if file not in before else _changed(now.get(file, ""))
            found.append(_difference("source", f"{file} {what}", before.get(file), now.get(file)))
    return found


def _changed(after: str) -> str:
    return "was edited after the run" if after else "is gone"


def _recomposed(
    directory: Path, config: Mapping[str, Any], folders: Sequence[Path], environment: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Keys that today's configuration files give another value: an inherited recipe was edited, for instance."""
    if config_hash(config) != environment.get("config_hash"):
        return []  # said already, and every key would follow from it
    from omegaconf import OmegaConf

    from pipeline.compose import recompose

    recorded = OmegaConf.to_container(OmegaConf.load(directory / ".hydra" / "overrides.yaml"))
    assert isinstance(recorded, list)
    with hydra(folders):
        today, problem = recompose([str(o) for o in recorded], folders)
    if problem is not None:
        return [_difference("config", "can't be composed from today's files", None, problem.message)]
    before = {k: v for k, v in _leaves(config) if k.partition(".")[0] not in ("output", "sweep", "trial", "format")}
    after = {k: v for k, v in _leaves(today) if k.partition(".")[0] not in ("output", "sweep", "trial", "format")}
    return [
        _difference("recipe" if key.startswith("recipe.") else "config", key, before.get(key), after.get(key))
        for key in sorted(set(before) | set(after))
        if key not in before or key not in after or before[key] != after[key]
    ]


def _rerun(config: Mapping[str, Any], place: Path, environment: Mapping[str, Any]) -> None:
    from pipeline.task import prepare
    from pipeline.trial import run_trial

    files = {group: locate(e["file"]) for group, e in (environment.get("config_files") or {}).items()}
    run_trial(prepare(config, files), place)


def _compare(before: Path, after: Path, tolerance: float) -> list[dict[str, Any]]:
    """Plan, diff and modelled metrics of two directories."""
    found = []
    plans = [(outputs.read_json(folder / "plan.json") or {}).get("hash") for folder in (before, after)]
    if plans[0] != plans[1]:
        found.append(_difference("plan", "hash", *plans))
    diffs = [_text(folder / "patch.diff") for folder in (before, after)]
    if diffs[0] != diffs[1]:
        found.append(_difference("diff", "patch.diff", *(f"{len(d.splitlines())} lines" for d in diffs)))
    metrics = [outputs.read_json(folder / "metrics.json") for folder in (before, after)]
    if not isinstance(metrics[0], dict):
        return [*found, _difference("metrics", "metrics.json is missing or is no JSON object", None, None)]
    old, new = (dict(_leaves(m or {})) for m in metrics)
    for key in sorted(set(old) | set(new)):
        if not _equal(old.get(key), new.get(key), tolerance):
            found.append(_difference("metrics", key, old.get(key), new.get(key)))
    return found


def _equal(a: Any, b: Any, tolerance: float) -> bool:
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    if numbers and tolerance:
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    return bool(a == b)


def _environment(environment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs without being part of `same`: versions, the commit."""
    before = environment.get("versions") or {}
    now = versions()
    found = [
        _difference("version", f"{name}{' (key library)' if name in key_versions() else ''}", old, new)
        for name in sorted(set(before) | set(now))
        if (old := before.get(name)) != (new := now.get(name))
    ]
    commits = [(g or {}).get("commit") for g in (environment.get("git"), git())]
    if commits[0] != commits[1]:
        found.append(_difference("git", "commit", *commits))
    return found


def _leaves(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything that is not a container; empty containers count as values."""
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(data, Mapping):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    if not items:
        yield prefix, data
    for key, value in items:
        yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))


def _difference(what: str, where: str, before: Any, after: Any) -> dict[str, Any]:
    return {"what": what, "where": where, "before": before, "after": after}


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
