"""The ELF writer's libraries are read back as written, and the loader takes them."""

import ctypes
import platform
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.graph.elf import AARCH64, X86_64, NotElfError, read_elf
from pipeline.graph.stub_elf import MACHINES, stub_library, symbol_hash

names = st.sets(st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,30}", fullmatch=True), max_size=40)


@settings(max_examples=40, deadline=None)
@given(names, st.sampled_from(MACHINES))
def test_reading_gives_what_was_written(tmp_path_factory, symbols, machine):
    path = tmp_path_factory.mktemp("elf") / "libx.so"
    path.write_bytes(stub_library("libx.so.1", symbols, machine))
    elf = read_elf(path)
    assert (elf.machine, elf.soname, elf.defined, elf.undefined, elf.needed) == (
        machine,
        "libx.so.1",
        symbols,
        set(),
        [],
    )


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="no such loader")
def test_the_loader_finds_every_symbol_and_each_returns_zero(tmp_path):
    symbols = [f"acl_function_{i}" for i in range(300)]
    path = tmp_path / "libfake_cann.so"
    path.write_bytes(stub_library(path.name, symbols, {"x86_64": X86_64, "aarch64": AARCH64}[platform.machine()]))
    library = ctypes.CDLL(str(path))
    assert [library[name](7) for name in symbols] == [0] * 300
    with pytest.raises(AttributeError):
        library["acl_function_300"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_symbols_of_a_real_library_are_found():
    ctypes.CDLL("libm.so.6")
    maps = Path("/proc/self/maps").read_text().splitlines()
    elf = read_elf(Path(next(line.split()[-1] for line in maps if "/libm" in line and line.endswith(".so.6"))))
    assert "cos" in elf.defined
    assert "libc.so.6" in elf.needed


@pytest.mark.parametrize(
    "content", [b"", b"no library", b"\x7fELF\x02\x01" + bytes(100), b"\x7fELF\x01\x01" + bytes(100)]
)
def test_other_files_are_refused_by_name(tmp_path, content):
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(NotElfError, match=r"x\.so"):
        read_elf(path)


def test_a_library_that_was_cut_off_is_refused(tmp_path):
    path = tmp_path / "x.so"
    path.write_bytes(stub_library("x.so", ["a", "b"], X86_64)[:-200])
    with pytest.raises(NotElfError):
        read_elf(path)


def test_the_hash_is_that_of_the_abi():
    # Values from the generic ABI's function, worked out by hand for short names.
    assert symbol_hash("") == 0
    assert symbol_hash("a") == 0x61
    assert symbol_hash("ab") == 0x672
    assert symbol_hash("printf") == 0x077905A6


def test_unknown_machines_are_refused():
    with pytest.raises(ValueError, match="machine 8"):
        stub_library("x.so", ["a"], 8)
