"""The repository's shape: folders, the direction of imports, the size of modules."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What each package may import of ours.
ALLOWED = {
    "models": {"models"},
    "transforms": {"models", "transforms"},
    "pipeline": {"models", "transforms", "pipeline"},
}
# Modules that may be longer, and why.
LONG = {
    "models/deepseek_v3.py": "one architecture is one file: it is what the source transform rewrites",
    "models/longcat_flash.py": "the same",
    "pipeline/simulator/engine.py": "numba caches one file, and the event loop cut into functions is 40 times slower",
    "pipeline/report/run_on_npu.py": "runs on its own, without us, at a colleague's",
}
MODULES = [path for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in MODULES]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level package of every import, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parts[0]
            yield node.lineno, package if node.level else (node.module or "").split(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_imports_go_one_way(path: Path):
    package = path.relative_to(ROOT).parts[0]
    wrong = [(line, name) for line, name in imports(path) if name in ALLOWED and name not in ALLOWED[package]]
    assert wrong == []


def test_an_import_the_wrong_way_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    path = tmp_path / "models" / "x.py"
    path.parent.mkdir()
    path.write_text("def f():\n    from pipeline.cli import main\n")
    with pytest.raises(AssertionError):
        test_imports_go_one_way(path)


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_modules_are_short(path: Path):
    if path.relative_to(ROOT).as_posix() in LONG:
        return
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 350


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_modules_say_what_they_are(path: Path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("package", [*ALLOWED])
def test_nothing_touches_the_import_path(package: str):
    """A user's tree may have a `models/` too: nothing of ours puts a folder on `sys.path`."""
    files = [path for path in (ROOT / package).rglob("*.py") if path.name != "run_on_npu.py"]
    bad = [path.name for path in files if "sys.path.insert" in path.read_text(encoding="utf-8")]
    assert bad == []


@pytest.mark.parametrize(
    "folder",
    [
        *("conf/model", "conf/recipe", "conf/deployment", "conf/hardware", "conf/runtime", "conf/backend"),
        *("pipeline", "transforms", "models", "tests/pipeline", "tests/transforms", "tests/models"),
        *("benchmarks", "docs"),
    ],
)
def test_folders(folder: str):
    assert any((ROOT / folder).iterdir())


def test_every_package_of_ours_has_tests_that_mirror_it():
    for package in ALLOWED:
        assert list((ROOT / "tests" / package).rglob("test_*.py")), package
