"""One architecture: load, find the structure, resolve the general recipe, transform in both ways, compare, compile."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from models.problems import Problem, RefusedError
from pipeline.coverage.recipe import general_recipe

CHECKS = ("structure", "source", "wrap", "numerics", "compile")
PASSED, REFUSED, FAILED, NOT_RUN = "passed", "refused", "failed", "-"
_LONGEST = 240


class ModelDoesNotCompileError(Exception):
    """The transformers model itself does not compile in one graph."""


@dataclass
class Row:
    """What was found about one model type.

    Attributes:
        model_type: as in `model=hf/<model_type>`.
        layers: FQN of the list of decoder layers.
        kinds: which parts the layers have: attention, mlp, moe.
        calls: prefetch calls of one decode step of the tiny model, planned and observed with the switch on.
        checks: check -> `passed`, `refused`, `failed`, or `-` for one that was not run.
        reasons: check -> why it did not pass.
    """

    model_type: str
    layers: str = ""
    kinds: str = ""
    calls: int = 0
    checks: dict[str, str] = field(default_factory=lambda: dict.fromkeys(CHECKS, NOT_RUN))
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Source, wrap and numerics passed, with at least one call."""
        return self.calls > 0 and all(self.checks[check] == PASSED for check in ("source", "wrap", "numerics"))

    def end(self, check: str, status: str, reason: str = "") -> None:
        """Note how a check ended."""
        self.checks[check] = status
        if reason:
            self.reasons[check] = shortened(reason)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """The block is a check: it passes unless it raises. What it raises ends this row's block, not the row."""
        try:
            yield
        except RefusedError as refused:
            self.end(name, REFUSED, in_words(refused.problems))
        except ModelDoesNotCompileError as reason:
            self.end(name, REFUSED, str(reason))
        except Exception as error:  # whatever a foreign model raises is this row's reason, not a crash of the table
            self.end(name, FAILED, of_error(error))
        else:
            if self.checks[name] == NOT_RUN:
                self.end(name, PASSED)


def make_row(model_type: str, compiled: bool = False) -> Row:
    """Check one architecture at tiny size, on the CPU.

    Args:
        model_type: a causal language model of the installed transformers.
        compiled: whether to compile the transformed decode step, too; that takes seconds.

    Returns:
        The row; what an architecture does wrong is in it, and not raised.
    """
    row = Row(model_type)
    loaded: Any = None
    plan: Any = None
    with row.check("structure"):
        loaded = _load(model_type)
        row.layers = f"{loaded.root}.{loaded.layers}".strip(".")
        if loaded.stepper.cached:
            plan = _plan(loaded, row)
        else:
            row.end("structure", REFUSED, "it has no cache: every step runs over all tokens, so none is a decode step")
    if plan is None:
        return row
    from pipeline.verify.numerics import baseline_run
    from transforms.recording import record

    baseline = baseline_run(loaded)
    planned = len(plan.prefetch)
    counts: list[int] = []
    builds: dict[str, Callable[[bool], Any]] = {}
    recording: Any = None
    with tempfile.TemporaryDirectory() as directory:
        with row.check("source"):
            recording = record(loaded)
            builds["source"] = _source(loaded, plan, recording, Path(directory))
        with row.check("wrap"):
            builds["wrap"] = _wrap(loaded, plan, recording, Path(directory))
        for name, build in builds.items():
            with row.check("numerics"):
                counts.append(_numerics(loaded, plan, build, baseline, name))
        if counts and len(counts) == len(builds) and min(counts) == planned:
            row.calls = planned
        if compiled and "source" in builds and row.checks["numerics"] == PASSED:
            with row.check("compile"):
                _compile(loaded, plan, builds["source"])
    return row


def shortened(text: str) -> str:
    """A reason on one line of a table, without what differs from machine to machine."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3].rstrip()}..."


def of_error(error: Exception) -> str:
    """The kind of error and the first line of what it says: further ones hold paths and stacks of this machine."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0]}"


def in_words(problems: Iterable[Problem]) -> str:
    """The errors' messages; equal ones once."""
    return "; ".join(dict.fromkeys(p.message for p in problems if p.severity == "error"))


def _load(model_type: str) -> Any:
    from models.loading import load, load_deployment, load_spec

    return load(load_spec(f"hf/{model_type}"), load_deployment("unsharded"), "ge_graph", "tiny")


def _plan(loaded: Any, row: Row) -> Any:
    """The general recipe on this model, with the byte counts of its own weights.

    Raises:
        RefusedError: the recipe can't be resolved, or nothing of it fits.
    """
    from models.problems import raise_errors
    from models.roles import find_roles
    from models.trace import trace
    from pipeline.resolve import resolve

    roles = find_roles(loaded).counts()
    row.kinds = ", ".join(dict.fromkeys(role.partition(".")[0] for role in roles if role in _TELLING))
    workload = trace(loaded)
    recipe = general_recipe()
    first = resolve(recipe, loaded, workload, exe_mode="ge_graph")
    raise_errors(first.problems)
    # By place in a layer of a kind, as when the sizes are those of the full model.
    resolution = resolve(recipe, loaded, workload, sizes=first.sizes, exe_mode="ge_graph")
    raise_errors(resolution.problems)
    return resolution.plan


_TELLING = ("attention.out", "mlp.up", "mlp.down", "moe.experts.up", "moe.experts.down", "moe.router")


def _source(loaded: Any, plan: Any, recording: Any, directory: Path) -> Callable[[bool], Any]:
    """Rewrite the file; the diff must apply to the one that transformers ships."""
    from transforms.registry import realise

    realisation = realise("source", loaded, plan, recording)
    assert realisation.source is not None
    _must_apply(realisation.source, directory / "pristine")
    return lambda enabled: realisation.build(enabled, directory / "rewritten")


def _wrap(loaded: Any, plan: Any, recording: Any, directory: Path) -> Callable[[bool], Any]:
    from transforms.registry import realise

    realisation = realise("wrap", loaded, plan, recording)
    return lambda enabled: realisation.build(enabled, directory)


def _must_apply(source: Any, directory: Path) -> None:
    import subprocess

    file = directory / source.name
    file.parent.mkdir(parents=True)
    file.write_bytes(source.before.encode())
    command = ["git", "apply", "--check", "-"]
    done = subprocess.run(command, input=source.diff.encode(), cwd=directory, capture_output=True)
    if done.returncode:
        raise ValueError(f"the diff does not apply to the original file: {done.stderr.decode().strip()}")


def _numerics(loaded: Any, plan: Any, build: Callable[[bool], Any], baseline: Any, name: str) -> int:
    """Calls observed in a decode step with the switch on, of a realisation that equals baseline and plan.

    Raises:
        ValueError: it does not; says where.
    """
    from pipeline.verify.numerics import check_numerics

    result = check_numerics(loaded, plan, build, baseline)
    if result.rung.status != PASSED:
        raise ValueError(f"{name}: {result.rung.detail}")
    return result.calls_observed or 0


def _compile(loaded: Any, plan: Any, build: Callable[[bool], Any]) -> None:
    """The rewritten step compiles in one graph, with all its calls.

    Raises:
        ModelDoesNotCompileError: nor does the unmodified one.
        ValueError: it has other calls.
    """
    from pipeline.coverage.compiling import compiled_calls
    from pipeline.verify.building import built

    try:
        with built(build, True) as module:
            seen = compiled_calls(loaded, module)
    except Exception:
        try:
            compiled_calls(loaded, loaded.module)
        except Exception as error:
            raise ModelDoesNotCompileError(f"nor does the unmodified model compile: {of_error(error)}") from error
        raise
    wanted = len(plan.prefetch)
    if seen != wanted:
        raise ValueError(f"the compiled decode step has {seen} prefetch calls, {wanted} are planned")
