"""Lines for the person at the terminal: paths are as short as they can be opened."""

from pathlib import Path

import pytest

from pipeline.config_files import CONF, config_dir_words
from pipeline.progress import say, shortened, shown


def test_paths_below_the_working_directory_are_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    say(f"taken over from {tmp_path}/outputs/1 ({tmp_path}/a.yaml:3), not from /elsewhere{tmp_path}/b")
    assert capsys.readouterr().err == f"taken over from outputs/1 (a.yaml:3), not from /elsewhere{tmp_path}/b\n"
    assert shown(tmp_path / "my_conf") == "my_conf" and shown(tmp_path.parent) == str(tmp_path.parent)
    assert config_dir_words((tmp_path / "my_conf", CONF)) == ["--config-dir", "my_conf"]
    monkeypatch.chdir("/")
    assert shortened("/etc/hosts") == "/etc/hosts"
