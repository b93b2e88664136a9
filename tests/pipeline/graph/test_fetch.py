"""Fetching: whole or not at all, twice like once, and a clear word when there is no network."""

import sys

import pytest

from pipeline.graph import fetch as fetching
from pipeline.graph.fetch import FetchError, fetch
from tests.pipeline.graph.fake_front_end import make_front_end

# Stands for pip: writes a front end into the folder behind --target, and counts its calls.
PIP = """
import sys, pathlib
sys.path.insert(0, {root!r})
from tests.pipeline.graph.fake_front_end import make_front_end
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
with open({log!r}, "a") as log: log.write(" ".join(sys.argv[1:]) + "\\n")
{last}
"""


@pytest.fixture
def pip(tmp_path, request):
    root = str(request.config.rootpath)

    def make(last="target.rmdir(); make_front_end(target)"):
        script = tmp_path / "pip.py"
        script.write_text(PIP.format(root=root, log=str(tmp_path / "log"), last=last))
        return (sys.executable, str(script))

    return make


def calls(tmp_path):
    return (tmp_path / "log").read_text().splitlines()


def left(tmp_path):
    """What lies beside the folder; nothing may stay behind."""
    return {p.name for p in tmp_path.iterdir()} - {"fe", "pip.py", "log"}


def test_it_is_there_afterwards_and_git_ignores_it(tmp_path, pip):
    front_end = fetch(tmp_path / "fe", pip=pip())
    assert front_end.path == tmp_path / "fe"
    assert (tmp_path / "fe" / ".gitignore").read_text() == "*\n"
    assert left(tmp_path) == set()
    (call,) = calls(tmp_path)
    assert "--no-deps" in call
    assert "torch-npu==2." in call


def test_a_second_time_does_nothing(tmp_path, pip):
    fetch(tmp_path / "fe", pip=pip())
    fetch(tmp_path / "fe", pip=pip())
    assert len(calls(tmp_path)) == 1
    fetch(tmp_path / "fe", again=True, pip=pip())
    assert len(calls(tmp_path)) == 2


def test_a_broken_folder_is_replaced(tmp_path, pip):
    folder = make_front_end(tmp_path / "fe")
    (folder / "torch_npu" / "__init__.py").unlink()
    (folder / "junk").touch()
    fetch(folder, pip=pip())
    assert not (folder / "junk").exists()
    assert left(tmp_path) == set()


def test_without_network_the_old_folder_stays(tmp_path, pip):
    folder = make_front_end(tmp_path / "fe")
    offline = pip('print("ERROR: No matching distribution found for torch-npu==2.13.0", file=sys.stderr); sys.exit(1)')
    with pytest.raises(FetchError, match=r"no network.*No matching distribution"):
        fetch(folder, again=True, pip=offline)
    assert fetch(folder).path == folder
    assert left(tmp_path) == set()


def test_what_is_incomplete_is_not_put_in_place(tmp_path, pip):
    half = pip('target.rmdir(); make_front_end(target); (target / "torch_npu/__init__.py").unlink()')
    with pytest.raises(FetchError, match="is missing"):
        fetch(tmp_path / "fe", pip=half)
    assert not (tmp_path / "fe").exists()
    assert left(tmp_path) == set()


def test_a_file_that_changed_on_its_way_is_noticed(tmp_path, pip):
    # Same size, other content: only the digest tells.
    record = """
record = next(target.glob("*.dist-info/RECORD"))
record.write_text(record.read_text().replace("__init__.py,,", "__init__.py,sha256=AAAA,"))
"""
    with pytest.raises(FetchError, match="damaged"):
        fetch(tmp_path / "fe", pip=pip(f"target.rmdir(); make_front_end(target)\n{record}"))


def test_the_command_says_what_happened(tmp_path, monkeypatch, capsys, pip):
    def no(*args, **kwargs):
        raise FetchError("no network")

    assert fetching.main(["--folder", str(make_front_end(tmp_path / "fe"))]) == 0
    assert "torch_npu 2.13.0 in" in capsys.readouterr().out
    monkeypatch.setattr(fetching, "fetch", no)
    assert fetching.main([]) == 1
    assert "no network" in capsys.readouterr().err
