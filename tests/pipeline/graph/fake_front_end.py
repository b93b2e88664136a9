"""A front-end folder whose torch_npu is a few lines of our own: the worker imports it like the real one."""

import sysconfig
from pathlib import Path

from pipeline.graph.elf import X86_64
from pipeline.graph.folder import torch_release
from pipeline.graph.stub_elf import stub_library

VERSION = "2.13.0"


def make_front_end(folder: Path, code: str = "", torch: str = "", extension: str = "") -> Path:
    """A folder that `check_folder` accepts.

    Args:
        folder: is created.
        code: what importing torch_npu runs.
        torch: the torch it says it belongs to; the installed one by default.
        extension: suffix of its C module; this Python's by default.
    """
    package, info = folder / "torch_npu", folder / f"torch_npu-{VERSION}.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text(code)
    library = package / f"_C{extension or sysconfig.get_config_var('EXT_SUFFIX')}"
    library.write_bytes(stub_library(library.name, ["PyInit__C"], X86_64))
    needs = f"Requires-Dist: torch=={torch or torch_release()}.*"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {VERSION}\n{needs}\n")
    files = [package / "__init__.py", library, info / "METADATA"]
    lines = [f"{file.relative_to(folder)},,{file.stat().st_size}" for file in files]
    (info / "RECORD").write_text("\n".join([*lines, "../../bin/torch_npu_run,,300", f"{info.name}/RECORD,,"]) + "\n")
    return folder
