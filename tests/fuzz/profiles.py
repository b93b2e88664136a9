"""`read_profiles` on mutated files: rows that hold what the table promises, or one refusal that says why."""

import os
import random
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from models.problems import RefusedError
from pipeline.profile.reader import Profiles, read_profiles
from pipeline.profile.rows import SCHEMA
from tests.fuzz.mutations import base_files, base_trace, mutated

HANG_S = 20


class HangError(Exception):
    """A file took longer than `HANG_S` seconds."""


def fuzz(cases: Iterable[int], seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Read one mutated file or run per number.

    Args:
        cases: numbers of the cases; with the seed they determine the files.
        seed: of the whole run.
        folder: where the files are written, one after the other; a failing one is kept there.

    Returns:
        How many were read, read with problems, or refused; and what failed, with traceback and file.
    """
    files, trace = base_files(), base_trace()
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for case in cases:
        rng = random.Random(f"{seed}:{case}")
        path = folder / f"case_{case}"
        target = _write(path, files, trace, rng)
        try:
            with _limit(HANG_S), _silent():
                outcome = _outcome(target)
            counts[outcome] += 1
        except BaseException as error:  # a panic of polars is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            counts["failed"] += 1
            failures.append(f"case {case}, kept in {path}:\n{traceback.format_exc()}")
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return counts, failures


def _write(path: Path, files: list[bytes], trace: bytes, rng: random.Random) -> Path:
    """A file, or a run folder in which table, trace and rank may each be damaged."""
    table = mutated(rng.choice(files), rng)
    if rng.random() < 0.7:
        path.write_bytes(table)
        return path
    output = path / "rank3_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    kept = rng.choice(files)
    (output / "kernel_details.csv").write_bytes(rng.choice((kept, table)))
    (output / "trace_view.json").write_bytes(mutated(trace, rng))
    (output.parent / "profiler_info_3.json").write_bytes(mutated(b'{"rank_id": 3, "config": {}}', rng))
    return path


def _outcome(path: Path) -> str:
    try:
        found = read_profiles(path)
    except RefusedError as error:
        assert any(problem.severity == "error" and problem.message for problem in error.problems)
        return "refused"
    check(found)
    return "read with problems" if found.problems else "read"


def check(found: Profiles) -> None:
    """What every table promises."""
    for profile in found.profiles:
        kernels = profile.kernels
        assert dict(kernels.schema) == dict(SCHEMA)
        assert kernels.height > 0
        assert kernels["line"].is_sorted() and kernels["line"].n_unique() == kernels.height and kernels["line"][0] > 1
        for name in ("start_us", "duration_us"):
            assert kernels[name].is_finite().all() and kernels[name].null_count() == 0
        assert (kernels["duration_us"] >= 0).all()
    assert found.slowest.busy_us >= found.slowest.computing_us >= 0
    assert all(problem.message and (problem.file or problem.key) for problem in found.problems)


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing may be written to standard error: polars prints a panic there even where we catch it."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        text = file.read(2000).decode("utf-8", "replace")
        assert not text, text


@contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise HangError(f"no answer after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
