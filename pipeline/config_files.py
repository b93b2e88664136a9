"""The YAML files of the config groups: which there are, and what is wrong with one as a whole."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.problems import Problem, hint
from pipeline.overrides import GROUPS
from pipeline.progress import shown
from pipeline.transformers_choice import option_name
from pipeline.yaml_source import YamlSource

CONF = Path(__file__).resolve().parent.parent / "conf"
_RUNTIME_KEYS = ("name", "exe_mode")


def options(group: str, folders: Sequence[Path] = (CONF,)) -> dict[str, Path]:
    """Option -> file of a config group, e.g. `longcat_flash/decode_prefetch`."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted((folder / group).rglob("*.yaml")):
            found.setdefault(path.relative_to(folder / group).with_suffix("").as_posix(), path)
    return found


def option_file(group: str, name: str | None, folders: Sequence[Path] = (CONF,)) -> Path | None:
    """The file of an option, None if there is none."""
    name = option_name(group, name)
    for folder in folders:
        path = folder / group / f"{name}.yaml"
        if name and path.is_file():
            return path
    return None


def files_of(choices: Mapping[str, str], folders: Sequence[Path]) -> dict[str, Path]:
    """Group -> the YAML file that its option comes from."""
    found = {group: option_file(group, name, folders) for group, name in choices.items()}
    return {group: path for group, path in found.items() if path}


def clashes(choices: Mapping[str, str], folders: Sequence[Path]) -> list[Problem]:
    """Chosen options that several folders have: Hydra would take the built-in one, whatever the user meant."""
    problems = []
    for group, name in choices.items():
        files = [f"{group}/{name}.yaml in {shown(folder)}" for folder in folders if option_file(group, name, [folder])]
        if len(files) > 1:
            message = f"{group}={name} is in several config folders: {'; '.join(files)}"
            problems.append(Problem("error", "ambiguous-option", message, "Give your own file another name.", group))
    return problems


def config_dir_words(folders: Sequence[Path]) -> list[str]:
    """`--config-dir DIR` for every folder but our own: what a command needs to find the same files."""
    return [word for folder in folders if folder.resolve() != CONF for word in ("--config-dir", shown(folder))]


def is_utf8(path: Path) -> bool:
    """Whether the file is text in the one encoding that config files have."""
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def not_utf8(path: Path) -> Problem:
    """The problem of a file for which `is_utf8` is false."""
    return Problem("error", "not-utf8", "the file is not UTF-8 text", "Save it as UTF-8.", None, str(path))


def check_groups(config: Mapping[str, Any], files: Mapping[str, Path]) -> list[Problem]:
    """Groups that are no mapping, of which nothing more can be read."""
    problems = []
    for group in GROUPS:
        value = config.get(group)
        if value is not None and not isinstance(value, Mapping):
            file = str(files[group]) if group in files else None
            problems.append(Problem("error", "not-a-mapping", "the file is not a mapping of keys", "", group, file))
    return problems


def check_runtime(config: Mapping[str, Any], files: Mapping[str, Path]) -> list[Problem]:
    """The keys of `runtime` are few and have no reader of their own."""
    problems = []
    for key in config.get("runtime") or {}:
        if key not in _RUNTIME_KEYS:
            message = f"unknown key `{key}` in `runtime`.{hint(str(key), _RUNTIME_KEYS)}"
            file, line = YamlSource(files["runtime"], "runtime").place(f"runtime.{key}")
            fix = f"Known keys: {', '.join(_RUNTIME_KEYS)}."
            problems.append(Problem("error", "unknown-key", message, fix, f"runtime.{key}", file, line))
    return problems
