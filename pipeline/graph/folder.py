"""Where the NPU front end is: an installed torch_npu, or a folder of its own that `pipeline.graph.fetch` fills.

torch_npu stays out of the environment: without CANN it breaks `import torch`. Nothing here imports it.
"""

import csv
import importlib.util
import os
import re
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

VARIABLE = "NPU_RECIPES_FRONT_END"
COMMAND = "python -m pipeline.graph.fetch"
# What torch_npu and torchair import beside torch and numpy; the wheel is installed without its dependencies.
COMPANIONS = ("pyyaml", "packaging", "protobuf", "attrs", "psutil", "decorator")

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class FrontEnd:
    """A torch_npu that a worker can import.

    Attributes:
        path: folder to put on the module path; None if torch_npu is installed in this environment.
        version: of torch_npu.
        package: folder of the package.
    """

    path: Path | None
    version: str
    package: Path


class NoFrontEndError(Exception):
    """There is none. The message says how to get it."""


class BrokenFrontEndError(Exception):
    """There is one that can't be used. The message says why, and what to do."""


def default_folder() -> Path:
    """`$NPU_RECIPES_FRONT_END`, else `.front_end` in a checkout, else a folder in the user's cache."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser().absolute()
    if (_ROOT / "pyproject.toml").is_file():
        return _ROOT / ".front_end"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npu-recipes" / "front_end"


def find_front_end(folder: Path | None = None) -> FrontEnd:
    """The torch_npu to use: the installed one if there is one, else the folder's.

    Args:
        folder: instead of `default_folder()`.

    Raises:
        NoFrontEndError: there is none.
        BrokenFrontEndError: its files are incomplete, or it belongs to another torch or Python.
    """
    installed = importlib.util.find_spec("torch_npu")
    if installed is not None and installed.submodule_search_locations:
        package = Path(installed.submodule_search_locations[0])
        return FrontEnd(None, metadata.version("torch_npu"), package)
    return check_folder(folder or default_folder())


def check_folder(folder: Path) -> FrontEnd:
    """The front end in a folder, its files all there and made for this torch and this Python.

    Raises:
        NoFrontEndError: there is no such folder.
        BrokenFrontEndError: see above.
    """
    if not folder.exists():
        raise NoFrontEndError(f"the NPU front end (torch_npu) is not in {folder}: get it with `{COMMAND}`")
    again = f"get it again with `{COMMAND} --again`"
    found = list(metadata.distributions(name="torch_npu", path=[str(folder)]))
    if not found:
        raise BrokenFrontEndError(f"{folder} holds no torch_npu: {again}")
    distribution = found[0]
    bad = _damaged(folder, distribution)
    if bad:
        raise BrokenFrontEndError(f"{folder}: {bad}: {again}")
    wanted = _wanted_torch(distribution)
    here = torch_release()
    if wanted != here:
        raise BrokenFrontEndError(
            f"{folder} holds torch_npu {distribution.version} for torch {wanted or '?'}, "
            f"but torch {here} is installed: {again}"
        )
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    if not (folder / "torch_npu" / f"_C{suffix}").is_file():
        raise BrokenFrontEndError(f"{folder} holds a torch_npu for another Python (no _C{suffix}): {again}")
    return FrontEnd(folder, distribution.version, folder / "torch_npu")


def torch_release() -> str:
    """Version of the installed torch without its local part: `2.13.0` of `2.13.0+cpu`."""
    return metadata.version("torch").partition("+")[0]


def _wanted_torch(distribution: metadata.Distribution) -> str:
    """`2.13.0` of `Requires-Dist: torch==2.13.0.*`; "" if it does not say."""
    for requirement in distribution.requires or []:
        if match := re.match(r"torch\s*\(?\s*==\s*([0-9][0-9.]*[0-9])", requirement):
            return match.group(1)
    return ""


def _damaged(folder: Path, distribution: metadata.Distribution) -> str:
    """The first file of the package that is missing or has another size than its record says; "" if there is none.

    Contents are compared when the folder is made; every time would cost half a second.
    """
    record = distribution.read_text("RECORD")
    if not record:
        return "the list of torch_npu's files is missing"
    for name, _, size in csv.reader(record.splitlines()):
        path = folder / name
        if not size or not name.startswith("torch_npu"):  # scripts are elsewhere, and not needed
            continue
        try:
            real = path.stat().st_size
        except OSError:
            return f"{name} is missing"
        if real != int(size):
            return f"{name} has {real} bytes, not {size}"
    return ""
