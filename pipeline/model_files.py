"""The files outside our own tree that decide what a transformers model is: its modeling source, and a checkpoint."""

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from models.hf.types import is_transformers
from models.problems import RefusedError

_BLOCK = 2**24


def model_files(config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> the first 16 hex digits of a SHA-256, of all files that decide what the model is.

    They are the Python files of the model's classes and of its parts, as `transformers/...`, and the config.json,
    index and safetensors files of a checkpoint folder, as `checkpoint/...`. Of a checkpoint too large for numerics
    only the headers and sizes count: its values are never read. Empty for a model of ours.

    Args:
        config: composed and plain; its `model` is read.
    """
    model = config.get("model")
    architecture = str(model.get("architecture", "")) if isinstance(model, Mapping) else ""
    if not isinstance(model, Mapping) or not is_transformers(architecture):
        return {}
    model_type, path = architecture.partition("/")[2], model.get("path")
    files: dict[str, str] = {}
    if path:
        from models.hf.folder import read_folder

        files = _checkpoint(Path(str(path)).expanduser())
        try:
            model_type = read_folder(str(path))[0]
        except RefusedError:
            return files  # whoever loads the model says what is wrong
    return files | dict(_sources(model_type))


@cache
def _sources(model_type: str) -> tuple[tuple[str, str], ...]:
    """The modeling and configuration files of a type and of the parts that its configuration has."""
    import transformers

    from models.hf.configs import full_config
    from models.hf.types import causal_lm_types, class_name, config_class

    if model_type not in causal_lm_types():
        return ()
    root = Path(str(transformers.__file__)).parent
    try:
        classes = [config_class(model_type), getattr(transformers, class_name(model_type))]
    except ImportError:  # a package is missing, and the model can't be loaded either
        classes = [config_class(model_type)]
    classes += [type(part) for part in vars(full_config(model_type, {})).values() if hasattr(part, "to_dict")]
    folders = {Path(str(sys.modules[cls.__module__].__file__)).parent for cls in classes}
    found = [path for folder in sorted(folders) for path in sorted(folder.glob("*.py")) if folder.name != "auto"]
    return tuple((f"transformers/{path.relative_to(root).as_posix()}", _hash(path)) for path in found)


def _checkpoint(folder: Path) -> dict[str, str]:
    from models.hf.checkpoint import MOST_VALUES
    from models.hf.safetensors_files import INDEX, read_files

    files = read_files(folder)
    whole = files.values <= MOST_VALUES
    found = {}
    described = [path for name in ("config.json", INDEX) if (path := folder / name).is_file()]
    for path in sorted([*described, *folder.glob("*.safetensors")]):
        state = path.stat()
        full = whole or path.suffix == ".json"
        found[f"checkpoint/{path.name}"] = _held(path, state.st_size, state.st_mtime_ns, full)
    return found


@cache
def _held(path: Path, size: int, changed: int, whole: bool) -> str:
    """The hash of a file that has this size and time of change."""
    return _hash(path) if whole else _header_hash(path, size)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()[:16]


def _header_hash(path: Path, size: int) -> str:
    with path.open("rb") as stream:
        start = stream.read(8)
        header = stream.read(min(int.from_bytes(start, "little"), size))
    return hashlib.sha256(start + header + str(size).encode()).hexdigest()[:16]
