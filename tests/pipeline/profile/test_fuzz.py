"""A sample of `make fuzz`, and that the harness would see a failure."""

import os
from pathlib import Path

import pytest

from models.problems import Problem, RefusedError
from tests.fuzz import profiles
from tests.fuzz.profiles import fuzz


def test_mutated_files_give_rows_or_a_refusal(tmp_path: Path):
    counts, failures = fuzz(range(300), seed=1, folder=tmp_path)
    assert failures == []
    assert sum(counts.values()) == 300
    assert min(counts["read"], counts["read with problems"], counts["refused"]) > 10


def test_the_same_seed_gives_the_same_files(tmp_path: Path):
    assert fuzz(range(40), 5, tmp_path) == fuzz(range(40), 5, tmp_path)


def test_words_on_standard_error_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def panics(path: Path) -> None:
        os.write(2, b"thread panicked")
        raise RefusedError([Problem("error", "code", "message")])

    monkeypatch.setattr(profiles, "read_profiles", panics)
    counts, failures = fuzz(range(1), seed=1, folder=tmp_path)
    assert counts == {"failed": 1} and "thread panicked" in failures[0]


def test_a_traceback_and_a_hang_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stuck(path: Path) -> None:
        if path.name == "case_0":
            raise KeyError("lost")
        while True:
            pass

    monkeypatch.setattr(profiles, "read_profiles", stuck)
    monkeypatch.setattr(profiles, "HANG_S", 1)
    counts, failures = fuzz(range(2), seed=1, folder=tmp_path)
    assert counts == {"failed": 2}
    assert "KeyError: 'lost'" in failures[0] and "HangError" in failures[1]
    assert (tmp_path / "case_0").exists()
