"""Recording finds the call expression that makes each module call, and refuses what it can't trust."""

import subprocess
import sys
from pathlib import Path

import pytest

from models.problems import RefusedError
from tests.transforms.text_models import load_text
from transforms.recording import record

FILE = """\
from torch import nn


class Leaf(nn.Module):
    def forward(self, x):
        return x + 1


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.leaf = Leaf()
        self.other = Leaf()
        self.many = nn.ModuleList([Leaf(), Leaf()])

    def forward(self, x):
        x = self.helper(x, scale=2)
        for leaf in self.many:
            x = leaf(x)
        alias = self.other
        x = (
            alias(
                x,
            )
            .clone()
        )
        return x

    def helper(self, x, scale):
        return self.leaf(x) * scale


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([Layer(config)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


def test_every_call_has_its_site_and_its_owner(tmp_path: Path) -> None:
    recording = record(load_text(FILE, tmp_path))
    lines = FILE.splitlines()
    found = {}
    for call in recording.decode.calls:
        if call.site is not None:
            text = lines[call.site.end_line - 1][: call.site.end_column].strip()
            found[call.fqn] = (call.site.function, call.owner, text)
    assert found == {
        "layers.0": ("Model.forward", "", "x = layer(x)"),
        "layers.0.leaf": ("Layer.helper", "layers.0", "return self.leaf(x)"),
        "layers.0.many.0": ("Layer.forward", "layers.0", "x = leaf(x)"),
        "layers.0.many.1": ("Layer.forward", "layers.0", "x = leaf(x)"),
        "layers.0.other": ("Layer.forward", "layers.0", ")"),
    }
    assert [call.fqn for call in recording.decode.calls if call.site is None] == [""]


def test_events_number_enters_and_exits_in_one_sequence(tmp_path: Path) -> None:
    step = record(load_text(FILE, tmp_path)).decode
    events = sorted(event for call in step.calls for event in (call.enter, call.exit))
    assert events == list(range(1, 2 * len(step.calls) + 1))
    inner = [(call, call.parent) for call in step.calls if call.parent is not None]
    assert inner and all(parent.enter < call.enter < call.exit < parent.exit for call, parent in inner)


def test_recording_leaves_no_hook_behind(tmp_path: Path) -> None:
    loaded = load_text(FILE, tmp_path)
    record(loaded)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in loaded.module.modules())


def test_a_file_that_was_edited_after_its_import_is_refused(tmp_path: Path) -> None:
    loaded = load_text(FILE, tmp_path)
    Path(str(loaded.python_module.__file__)).write_text(
        FILE.replace("x = self.helper", "y = 1\n        x = self.helper")
    )
    with pytest.raises(RefusedError, match="was edited after it was imported"):
        record(loaded)


def test_an_interpreter_without_positions_is_refused(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from models.problems import RefusedError\n"
        "from tests.transforms.text_models import load_text; from transforms.recording import record\n"
        "from tests.transforms.test_recording import FILE\n"
        "try:\n    record(load_text(FILE, Path(sys.argv[1])))\nexcept RefusedError as e:\n    print(e)\n"
    )
    command = [sys.executable, "-X", "no_debug_ranges", "-c", program, str(tmp_path)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert "without column positions" in done.stdout, done.stderr
    assert "PYTHONNODEBUGRANGES" in done.stdout
