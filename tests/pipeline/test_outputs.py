"""The output directory: refused if it can't be written, never shared, files whole or absent."""

import os
from pathlib import Path

import pytest

from models.problems import RefusedError
from pipeline import outputs
from pipeline.ledger import Ledger, TransitionError
from tests.pipeline.cli_fixtures import RECIPE, App


def test_directories_made_in_the_same_second_differ(tmp_path: Path):
    made = [outputs.create(tmp_path, sweep=False) for _ in range(50)]
    assert len(set(made)) == 50 and all(path.is_dir() for path in made)


def test_a_name_that_is_taken_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ids = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr(outputs.secrets, "token_hex", lambda n: next(ids))
    first, second = outputs.create(tmp_path, sweep=True), outputs.create(tmp_path, sweep=True)
    assert first.name.endswith("aaaaaa") and first != second and first.parent.parent.name == "multirun"


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        outputs.write_json(tmp_path / "metrics.json", {"a": 1})
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError, match="can't be written"):
        outputs.check_writable(tmp_path / "file" / "outputs", 1)


def test_a_read_only_place_is_refused_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def read_only(self: Path, *_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(RefusedError, match="Read-only"):
        outputs.check_writable(tmp_path / "a" / "b", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_refused_and_left_as_it_was(app: App, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda path: _Usage)
    result = app("-m", RECIPE, "recipe.prefetch.coefficient=0.5,0.7", "output=new/place", "format=json")
    assert result.code == 2 and result.json["problems"][0]["code"] == "output-not-writable"
    assert app.written == [] and app.trials == []


class _Usage:
    free = 1000


def test_the_check_leaves_nothing_behind(tmp_path: Path):
    outputs.check_writable(tmp_path / "a" / "b", 3)
    assert list(tmp_path.iterdir()) == []


def test_the_ledger_keeps_the_last_state_and_only_grows(tmp_path: Path):
    ledger = Ledger(tmp_path)
    ledger.start("npu-recipes -m x", ["x"])
    sizes = []
    for state in ("queued", "running", "failed", "queued", "running", "done"):
        ledger.move("k", state)  # type: ignore[arg-type]
        sizes.append(ledger.path.stat().st_size)
    assert ledger.states() == {"k": "done"} and sizes == sorted(set(sizes))


@pytest.mark.parametrize(("before", "after"), [((), "running"), (("queued", "done"), "running"), ((), "done")])
def test_states_can_only_be_reached_in_order(tmp_path: Path, before: tuple[str, ...], after: str):
    ledger = Ledger(tmp_path)
    for state in before:
        ledger.move("k", state)  # type: ignore[arg-type]
    with pytest.raises(TransitionError):
        ledger.move("k", after)  # type: ignore[arg-type]


def test_half_a_line_left_by_a_crash_is_skipped(tmp_path: Path):
    ledger = Ledger(tmp_path)
    ledger.move("a", "queued")
    with open(ledger.path, "a") as file:
        file.write('{"event": "trial", "key": "a", "sta')
    ledger.move("a", "running")
    assert ledger.states() == {"a": "running"}


def test_a_sweep_directory_has_one_owner(tmp_path: Path):
    with Ledger(tmp_path).owned(), pytest.raises(RefusedError, match="another process"), Ledger(tmp_path).owned():
        pass


def test_a_path_that_is_no_text_is_written_as_an_escape(tmp_path: Path):
    outputs.write_json(tmp_path / "f.json", {"command": "a\udcc3b"})
    assert outputs.read_json(tmp_path / "f.json") == {"command": "a\udcc3b"}
    assert "udcc3" in (tmp_path / "f.json").read_text(encoding="utf-8")
