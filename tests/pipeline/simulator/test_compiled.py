"""One implementation: compiled and uncompiled code give the same numbers, and the compiler leaves no traces."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from pipeline.simulator.simulate import StepResult, simulate
from tests.pipeline.simulator.cases import random_case, random_scopes

ROOT = Path(__file__).parents[3]
CASES = 400


def digest(result: StepResult) -> list[str]:
    """Every number of a result, to the last bit."""
    copies = [(c.release, c.start, c.end, c.moved, c.resident, c.useful, c.pushed_out) for c in result.copies]
    numbers = [result.time, result.hbm_bytes, *result.starts, *result.ends, *result.hits, *sum(copies, ())]
    return [float(number).hex() for number in numbers] + [str(count) for count in result.rules.values()]


def all_digests() -> list[list[str]]:
    rng = random.Random(11)
    digests = []
    for number in range(CASES):
        step, copies, p = random_case(rng, 1 + 2 * (number % 2))
        fused = p.with_values(launch=rng.choice([0.0, 1.3]), fused_gap=rng.choice([0.0, 0.2]), fusion=number % 2)
        scopes = random_scopes(rng, step) if number % 4 > 1 else []
        digests.append(digest(simulate(step, copies, fused, 1 + number % 3 // 2, scopes)))
    return digests


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_uncompiled_source_gives_identical_results() -> None:
    code = (
        "import json, tests.pipeline.simulator.test_compiled as t; from pipeline.simulator import engine\n"
        "assert not hasattr(engine.step, 'py_func'), 'this is compiled'\n"
        "print(json.dumps(t.all_digests()))"
    )
    done = run_python(code, NUMBA_DISABLE_JIT="1")
    assert done.returncode == 0, done.stderr
    uncompiled = json.loads(done.stdout)
    compiled = all_digests()
    differing = [number for number in range(CASES) if compiled[number] != uncompiled[number]]
    assert differing == []
    rng = random.Random(11)  # and the comparison can fail
    step, copies, p = random_case(rng)
    assert digest(simulate(step, copies, p.with_values(hbm_share=0.9))) != uncompiled[0]


def test_it_runs_where_nothing_can_be_written() -> None:
    """No directory for numba's cache: it compiles and does without."""
    code = (
        "from numba.core import caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from pipeline.simulator.engine import compiled\n"
        "print(compiled(lambda x: x + 1)(41))"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "42"


def test_the_cache_goes_where_it_is_told(tmp_path: Path) -> None:
    code = (
        "import numpy as np; from pipeline.simulator.engine import level\n"
        "print(level(np.array([[0.0, 1.0, 3.0]]), 0, 0.5))"
    )
    done = run_python(code, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2.0"
    assert list(tmp_path.rglob("engine.level*.nbi"))


def test_a_machine_needs_no_compiler() -> None:
    """Configuration is checked before anything heavy is imported."""
    code = "import sys, pipeline.simulator; print('numba' in sys.modules, 'torch' in sys.modules)"
    assert run_python(code).stdout.split() == ["False", "False"]
