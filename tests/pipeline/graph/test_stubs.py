"""What must be stubbed: all that CANN would give, and nothing that torch should have given."""

import ctypes
from pathlib import Path

import pytest

from pipeline.graph import stubs
from pipeline.graph.elf import X86_64, ElfFile


@pytest.fixture
def libraries(monkeypatch, tmp_path):
    """Libraries by name, as `read_elf` would read them; torch has one of its own."""
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    known: dict[str, ElfFile] = {
        "libtorch_npu.so": ElfFile(
            X86_64,
            "libtorch_npu.so",
            ["libtorch.so", "libascendcl.so", "libc.so.6"],
            {"aclInit", "at_add", "malloc"},
            {"own"},
        ),
        "_C.so": ElfFile(X86_64, "", ["libtorch_npu.so", "libge_runner.so"], {"own", "geCompile"}, set()),
        "libtorch.so": ElfFile(X86_64, "libtorch.so", ["libc10.so"], set(), {"at_other"}),
        "libc10.so": ElfFile(X86_64, "libc10.so", [], set(), {"at_add"}),
    }
    for name in known:
        folder = "torch/lib" if name in ("libtorch.so", "libc10.so") else "torch_npu"
        (tmp_path / folder / name).touch()
    monkeypatch.setattr(stubs, "read_elf", lambda path: known[Path(path).name])
    return known, lambda: stubs.find_missing(tmp_path / "torch_npu", tmp_path / "torch")


def test_what_no_one_defines_is_missing(libraries):
    _, find = libraries
    missing = find()
    # `own` is torch_npu's, `at_add` torch's (two libraries further), `malloc` the C library's.
    assert missing.symbols == ("aclInit", "geCompile")
    assert missing.libraries == ("libascendcl.so", "libge_runner.so")
    assert missing.machine == X86_64


@pytest.mark.parametrize("symbol", ["_ZN2at3addEv", "_ZNK3c104Type4nameEv", "_ZTVN5torch3jit6ModuleE", "PyObject_New"])
def test_a_missing_symbol_of_torch_or_python_is_a_mismatch_and_never_stubbed(libraries, symbol):
    known, find = libraries
    known["_C.so"].undefined.add(symbol)
    with pytest.raises(stubs.MismatchError, match=symbol):
        find()


def test_preloaded_stubs_satisfy_the_loader(tmp_path):
    missing = stubs.Missing(X86_64, ("libnpu_recipes_test.so",), ("npu_recipes_test_symbol",))
    stubs.preload(missing, tmp_path)
    assert ctypes.CDLL("libnpu_recipes_test.so")["npu_recipes_test_symbol"]() == 0  # by its name, without a path
    assert ctypes.CDLL(None)["npu_recipes_test_symbol"]() == 0


def test_a_folder_without_libraries_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        stubs.find_missing(tmp_path, tmp_path)
