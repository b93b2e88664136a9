"""Lets torch_npu be imported without CANN: what its libraries miss is defined by stub libraries, loaded first.

The dynamic loader satisfies a `NEEDED` entry by any library loaded under that name, so no search path has to be
set. Stubs are never loaded where a real CANN is, and they never define a symbol that torch should have defined: that
would turn a mismatch of versions into functions that silently return 0.
"""

import contextlib
import ctypes
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline.graph.elf import ElfFile, read_elf
from pipeline.graph.stub_elf import stub_library

CANN_LIBRARY = "libascendcl.so"
_RUNTIME_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1")
_RUNTIME = re.compile(r"(ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|util|gomp)[-.])")
# Mangled names in the namespaces at, c10, torch, caffe2 (functions, vtables, type infos), and the C API of Python.
_NOT_OURS = re.compile(r"_Z(T[VIST])?N?K?(2at|3c10|5torch|6caffe2)|_?Py")

_loaded: list[ctypes.CDLL] = []  # a handle that is collected does not unload the library, but say so


class MismatchError(RuntimeError):
    """torch_npu wants symbols of torch that the installed torch does not have."""


@dataclass(frozen=True)
class Missing:
    """What must be there before torch_npu can be imported.

    Attributes:
        machine: ELF machine number of torch_npu's libraries.
        libraries: sonames that nothing provides.
        symbols: functions that nothing defines.
    """

    machine: int
    libraries: tuple[str, ...]
    symbols: tuple[str, ...]


def real_cann() -> bool:
    """Whether the loader finds CANN's runtime."""
    try:
        ctypes.CDLL(CANN_LIBRARY)
    except OSError:
        return False
    return True


def preload(missing: Missing, directory: Path) -> None:
    """Write stubs below `directory` and load them for every library that comes later."""
    for soname in missing.libraries:
        path = directory / soname
        # All symbols in each: torch_npu also looks symbols up in single libraries.
        path.write_bytes(stub_library(soname, missing.symbols, missing.machine))
        _loaded.append(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))


def find_missing(torch_npu: Path, torch: Path) -> Missing:
    """What torch_npu's libraries need and neither they, nor torch, nor the C and C++ runtimes have.

    Args:
        torch_npu: folder of the package.
        torch: folder of the package it goes with.

    Raises:
        MismatchError: symbols of torch are missing.
        NotElfError, OSError: a library can't be read.
    """
    own = {path.name: read_elf(path) for path in sorted(_libraries(torch_npu))}
    if not own:
        raise FileNotFoundError(f"{torch_npu} holds no shared library")
    here = {elf.soname or name for name, elf in own.items()}
    torch_files = {path.name: path for path in (torch / "lib").glob("*.so*")}
    wanted = {name for elf in own.values() for name in elf.needed} - here
    torch_libraries = _closure(wanted & torch_files.keys(), torch_files)
    libraries = sorted(name for name in wanted - torch_files.keys() if not _RUNTIME.match(name))

    defined: set[str] = set()
    for elf in (*own.values(), *torch_libraries):
        defined |= elf.defined
    undefined = {symbol for elf in own.values() for symbol in elf.undefined} - defined
    symbols = sorted(_not_in_runtime(undefined))
    foreign = [symbol for symbol in symbols if _NOT_OURS.match(symbol)]
    if foreign:
        raise MismatchError(
            f"torch_npu needs {len(foreign)} symbols that the installed torch does not define, {foreign[0]} for one: "
            "the two versions do not go together"
        )
    return Missing(next(iter(own.values())).machine, tuple(libraries), tuple(symbols))


def _libraries(torch_npu: Path) -> Iterable[Path]:
    yield from torch_npu.rglob("*.so*")
    yield from (torch_npu.parent / "torch_npu.libs").glob("*.so*")


def _closure(names: Iterable[str], files: dict[str, Path]) -> list[ElfFile]:
    """The libraries of these names and all that they need, as far as there are files of them."""
    found: dict[str, ElfFile] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in files and name not in found:
            found[name] = read_elf(files[name])
            todo += found[name].needed
    return list(found.values())


def _not_in_runtime(symbols: set[str]) -> set[str]:
    """Those that this process can't look up once the C and C++ runtimes are loaded."""
    for library in _RUNTIME_LIBRARIES:
        with contextlib.suppress(OSError):
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    process = ctypes.CDLL(None)

    def is_defined(symbol: str) -> bool:
        try:
            process[symbol]
        except AttributeError:
            return False
        return True

    return {symbol for symbol in symbols if not is_defined(symbol)}
