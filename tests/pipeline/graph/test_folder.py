"""A front-end folder is used only if it is whole and made for this torch and Python."""

import os

import pytest

from pipeline.graph.folder import (
    VARIABLE,
    BrokenFrontEndError,
    NoFrontEndError,
    check_folder,
    default_folder,
    find_front_end,
)
from tests.pipeline.graph.fake_front_end import VERSION, make_front_end


def test_a_whole_folder_is_found(tmp_path):
    folder = make_front_end(tmp_path / "fe")
    front_end = find_front_end(folder)
    assert (front_end.path, front_end.version, front_end.package) == (folder, VERSION, folder / "torch_npu")


def test_no_folder_says_how_to_get_it(tmp_path):
    with pytest.raises(NoFrontEndError, match=r"pipeline\.graph\.fetch"):
        find_front_end(tmp_path / "fe")


def break_file(folder):
    path = folder / "torch_npu" / "__init__.py"
    path.write_text(path.read_text() + "x")


def remove_file(folder):
    next((folder / "torch_npu").glob("_C*")).unlink()


def remove_record(folder):
    next(folder.glob("*.dist-info/RECORD")).unlink()


def remove_package(folder):
    for path in next(folder.glob("*.dist-info")).iterdir():
        path.unlink()
    next(folder.glob("*.dist-info")).rmdir()


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (break_file, "__init__.py has 1 bytes, not 0"),
        (remove_file, "_C.* is missing"),
        (remove_record, "list of torch_npu's files is missing"),
        (remove_package, "holds no torch_npu"),
    ],
)
def test_a_broken_folder_says_what_is_wrong_and_what_to_do(tmp_path, breaks, said):
    folder = make_front_end(tmp_path / "fe")
    breaks(folder)
    with pytest.raises(BrokenFrontEndError, match=said) as error:
        check_folder(folder)
    assert "--again" in str(error.value)


def test_another_torch_is_refused_with_both_versions(tmp_path):
    folder = make_front_end(tmp_path / "fe", torch="2.9.1")
    with pytest.raises(BrokenFrontEndError, match=r"for torch 2\.9\.1, but torch 2\.\d+\.\d+ is installed"):
        check_folder(folder)


def test_another_python_is_refused(tmp_path):
    folder = make_front_end(tmp_path / "fe", extension=".cpython-38-x86_64-linux-gnu.so")
    with pytest.raises(BrokenFrontEndError, match="another Python"):
        check_folder(folder)


def test_the_variable_names_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "here"))
    assert default_folder() == tmp_path / "here"
    monkeypatch.setenv(VARIABLE, os.path.relpath(tmp_path / "here"))
    assert default_folder().is_absolute()
    monkeypatch.delenv(VARIABLE)
    assert default_folder().name in (".front_end", "front_end")
