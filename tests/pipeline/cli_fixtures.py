"""A small config folder and stand-ins for the stages behind the command line, which have tests of their own."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from models.problems import Problem, RefusedError
from pipeline import environment, reproduce
from pipeline.cli import main

FILES = {
    "model/toy.yaml": "# A toy model.\nname: toy\narchitecture: toy\nconfig: {hidden_size: 8}\n",
    "model/other.yaml": "# Another model.\nname: other\narchitecture: toy\nconfig: {hidden_size: 16}\n",
    "deployment/one_die.yaml": "# One die.\nname: one_die\nbatch_size: 4\n",
    "deployment/two_dies.yaml": "# Two dies.\nname: two_dies\nbatch_size: 8\n",
    "hardware/toy_chip.yaml": "# A chip.\nname: toy_chip\nl2_bytes: 192\n",
    "recipe/toy/decode.yaml": (
        "# Toy: the router after o_proj. For tests.\n"
        "name: toy/decode\nmodel: toy\ndeployment: one_die\nhardware: toy_chip\nruntime: ge_graph\n"
        "prefetch:\n  enabled: true\n  coefficient: 0.5\n  only: null\n  targets:\n"
        "    router:\n      weight: layers.{i}.router\n      dependency: layers.{i}.o_proj\n"
        "    down:\n      weight: layers.{i}.down\n      dependency: layers.{i}.gate_up:input\n"
    ),
    "recipe/toy/child.yaml": (
        "# Toy, inherited.\ndefaults:\n  - /recipe/toy/decode@_here_\n  - _self_\nname: toy/child\n"
        "prefetch:\n  coefficient: 0.25\n"
    ),
}
RECIPE = "recipe=toy/decode"


@dataclass
class Result:
    """Exit code and both streams of one call."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class App:
    """The command line on the small config folder.

    Attributes:
        folder: the working directory.
        conf: the config folder.
        trials: configurations of the trials that really ran.
        on_trial: called with the configuration by each trial; may raise.
    """

    folder: Path
    conf: Path
    capsys: pytest.CaptureFixture[str]
    trials: list[Mapping[str, Any]]
    on_trial: Callable[[Mapping[str, Any]], None] = lambda config: None
    status: str = "ok"

    def __call__(self, *words: str) -> Result:
        self.capsys.readouterr()
        code = main([*words, "--config-dir", str(self.conf)])
        captured = self.capsys.readouterr()
        return Result(code, captured.out, captured.err)

    @property
    def written(self) -> list[str]:
        """Everything below the working directory but the config folder."""
        return sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if self.conf not in p.parents)


@pytest.fixture
def app(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> App:
    work, conf = tmp_path / "work", tmp_path / "conf"
    work.mkdir()
    for name, text in FILES.items():
        path = conf / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(work)
    made = App(work, conf, capsys, [])
    install(monkeypatch, made)
    return made


def install(monkeypatch: pytest.MonkeyPatch, made: App) -> None:
    """Put the stand-ins in place; also used in the process of a test that is killed."""
    _fake(monkeypatch, "pipeline.experiment", build_experiment=_build, prepare=_prepare)
    _fake(monkeypatch, "pipeline.trial", run_trial=lambda *args: _trial(made, *args))
    _fake(monkeypatch, "pipeline.validate", run_validate=_validate)
    _fake(
        monkeypatch,
        "pipeline.propose",
        run_propose=lambda p, typed: ("# Proposal\n", {"status": "ok", "patch": "0" * 16}),
    )
    # Fixed, so that nobody who edits a file while the tests run changes a trial key between two calls.
    hashes = {"models/loading.py": "1" * 16}
    for module in (environment, reproduce):
        monkeypatch.setattr(module, "source_hashes", lambda: hashes)


def _fake(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(functions)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules["pipeline"], name.split(".")[1], module, raising=False)


def _build(config: Mapping[str, Any], sources: Mapping[str, Path]) -> Any:
    """As strict about the recipe as the command line's tests need."""
    prefetch = config["recipe"]["prefetch"]
    problems = [
        Problem("error", "unknown-key", f"unknown key {key}", key=f"recipe.prefetch.{key}")
        for key in prefetch
        if key not in ("enabled", "coefficient", "only", "targets")
    ]
    c = prefetch.get("coefficient")
    if not isinstance(c, int | float) or not 0 < c <= 1:
        problems.append(
            Problem("error", "bad-coefficient", f"{c!r} is not in (0, 1]", key="recipe.prefetch.coefficient")
        )
    if problems:
        raise RefusedError(problems)
    return config


def _prepare(config: Mapping[str, Any]) -> Any:
    warning = Problem("warning", "eager", "prefetch in eager is for testing only")
    return SimpleNamespace(experiment=config, problems=[warning] if config["runtime"]["name"] == "eager" else [])


def _trial(app: App, prepared: Any, directory: Path, *rest: Any) -> Any:
    config = prepared.experiment
    app.trials.append(config)
    print("a library that prints")
    app.on_trial(config)
    record = _record(config, app.status)
    plan = {"hash": json.dumps(config["recipe"]["prefetch"], sort_keys=True)}
    for name, data in {"plan.json": plan, "metrics.json": record["metrics"]}.items():
        (directory / name).write_text(json.dumps(data))
    (directory / "patch.diff").write_text("".join(config["recipe"]["prefetch"]["targets"]))
    return SimpleNamespace(status=app.status, to_json=lambda: record)


def _record(config: Mapping[str, Any], status: str) -> dict[str, Any]:
    c = config["recipe"]["prefetch"]["coefficient"]

    def figure(value: float, unit: str) -> dict[str, Any]:
        return {"value": value, "unit": unit, "low": value - 1, "high": value + 1, "provenance": "modelled"}

    target = {"weight": "layers.0.w", "dependency": "layers.0.o_proj:output", "count": 2, "max_size": 9}
    figures = {"baseline": figure(8, "us"), "memory_bound": figure(90, "%"), "window": figure(12, "us")}
    return {
        "status": status,
        "verification": {"compiles": {"status": "passed" if status == "ok" else "failed", "detail": "parsed"}},
        "verdict": {"outcome": "improved" if status == "ok" else "failed", "reason": "why", "provenance": "modelled"},
        "metrics": {
            "baseline": {"step": figure(100, "us")},
            "optimized": {"step": figure(100 - c, "us")},
            "delta": {"step": figure(c, "%")},
            "prefetch": {"per_layer": figure(36 * c, "MiB")},
        },
        "targets": [
            {"name": name, **target, **figures, "gain_alone": figure(c / 2, "%")}
            for name in config["recipe"]["prefetch"]["targets"]
        ],
        "calls_planned": 4,
        "calls_observed": 4,
    }


def _validate(prepared: list[Any]) -> Any:
    return {"status": "ok", "points": len(prepared)}, "a table"
