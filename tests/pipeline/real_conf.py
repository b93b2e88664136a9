"""The command line on the committed configuration, in process, for tests of the whole chain."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import main
from pipeline.compose import CONF, compose_grid
from pipeline.experiment import Prepared, build_experiment, prepare
from pipeline.overrides import read_overrides

LONGCAT = "recipe=longcat_flash/decode_prefetch"
SMALL = (LONGCAT, "model.config.num_layers=3", "backend.draws=16", "verify.graph=false")


def prepared(*words: str) -> Prepared:
    """The prepared grid point of these overrides."""
    overrides, problems = read_overrides(words)
    assert not problems
    (point,) = compose_grid(overrides, False, (CONF,))
    return prepare(build_experiment(point.config, point.sources()))


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """Exit code and the JSON object on stdout."""
    capsys.readouterr()
    code = main([*words, "format=json"])
    return code, json.loads(capsys.readouterr().out)


def files(directory: Path) -> set[str]:
    """Names of everything below a directory."""
    return {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}
