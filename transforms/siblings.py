"""Load rewritten text as a module of the same package as the original, so that its relative imports keep working."""

import importlib
import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

_serial = itertools.count(1)


def load_sibling(python_module: ModuleType, text: str, directory: Path) -> ModuleType:
    """Write the text below `directory` and import it beside the original module.

    Args:
        python_module: the original, e.g. `transformers.models.qwen3.modeling_qwen3`.
        text: the rewritten source.
        directory: gets the file as `transformers/models/qwen3/modeling_qwen3.py`: some packages read their own path.

    Returns:
        The new module. Its name is unique, and it stays in `sys.modules`, as pickling its classes needs.

    Raises:
        ValueError: the file would replace the original.
    """
    package, _, leaf = python_module.__name__.rpartition(".")
    if package:
        importlib.import_module(package)
    path = Path(directory, *python_module.__name__.split(".")).with_suffix(".py")
    if path.resolve() == Path(str(python_module.__file__)).resolve():
        raise ValueError(f"{directory} holds the original file, which must not be overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))
    name = f"{package}.{leaf}_rewritten_{next(_serial)}".lstrip(".")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
