"""A rewritten file is loaded beside the original, in the same package."""

import importlib
import sys
from pathlib import Path

import pytest

from transforms.siblings import load_sibling

ORIGINAL = "transformers.models.llama.modeling_llama"


def test_relative_imports_and_paths_keep_working(tmp_path: Path) -> None:
    original = importlib.import_module(ORIGINAL)
    text = Path(str(original.__file__)).read_text()
    sibling = load_sibling(original, text, tmp_path)
    assert sibling is not original and sys.modules[sibling.__name__] is sibling
    assert sibling.__package__ == original.__package__
    assert sibling.LlamaConfig is original.LlamaConfig and sibling.LlamaModel is not original.LlamaModel
    assert Path(str(sibling.__file__)).relative_to(tmp_path).as_posix() == ORIGINAL.replace(".", "/") + ".py"


def test_the_original_is_never_overwritten() -> None:
    original = importlib.import_module("models.problems")
    root = Path(str(original.__file__)).parents[1]
    before = Path(str(original.__file__)).read_text()
    with pytest.raises(ValueError, match="must not be overwritten"):
        load_sibling(original, "", root)
    assert Path(str(original.__file__)).read_text() == before


def test_a_file_that_fails_leaves_no_module_behind(tmp_path: Path) -> None:
    original = importlib.import_module("models.problems")
    before = set(sys.modules)
    with pytest.raises(ZeroDivisionError):
        load_sibling(original, "1 / 0\n", tmp_path)
    assert set(sys.modules) == before
