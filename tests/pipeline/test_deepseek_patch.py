"""`run model=hf/deepseek_v3 recipe=generic/mlp`: the patch applies to transformers' own file, and does what it says."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli import main

pytest.importorskip("transformers")

FILE = "transformers/models/deepseek_v3/modeling_deepseek_v3.py"


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    output = tmp_path_factory.mktemp("outputs")
    tokens = ["recipe=generic/mlp", "model=hf/deepseek_v3", f"output={output}", "model.config.num_hidden_layers=6"]
    assert main(["run", *tokens]) in (0, 1)
    (record,) = output.rglob("record.json")
    yield record.parent


def test_the_patch_applies_to_the_pristine_file_and_can_be_taken_back(trial: Path, tmp_path: Path) -> None:
    from transformers.models.deepseek_v3 import modeling_deepseek_v3

    pristine = Path(modeling_deepseek_v3.__file__).read_bytes()
    patch = (trial / "patch.diff").read_bytes()
    assert patch.startswith(f"--- a/{FILE}\n".encode()) and b"+" in patch
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(pristine)

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    git("apply", "--check", str(trial / "patch.diff"))
    git("apply", str(trial / "patch.diff"))
    assert file.read_bytes() != pristine
    git("apply", "-R", str(trial / "patch.diff"))
    assert file.read_bytes() == pristine


def test_as_many_calls_as_planned_and_the_same_bits(trial: Path) -> None:
    record = json.loads((trial / "record.json").read_text())
    assert record["calls_observed"] == record["calls_planned"] > 0
    assert record["verification"]["numerics"]["status"] == "passed"
    assert "bit for bit" in record["verification"]["numerics"]["detail"]
