"""A process per architecture, with a time limit: one that crashes or hangs is one row, not the end of the table."""

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from pipeline.coverage.row import FAILED, Row

_NEEDED = (
    "transformers",
    "models.hf.loaded",
    "models.roles",
    "models.trace",
    "pipeline.resolve",
    "pipeline.verify.numerics",
    "transforms.registry",
)
_QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}


def make_rows(jobs: Sequence[tuple[str, Callable[[], Row]]], processes: int, limit: float) -> Iterator[Row]:
    """Run every job in a process of its own.

    Args:
        jobs: (model type, makes its row).
        processes: how many run at the same time.
        limit: seconds that one may take.

    Yields:
        Rows as they are finished; a process that dies or takes too long gives a failed row.
    """
    os.environ.update(_QUIET)
    _import_once()
    context = multiprocessing.get_context("fork")
    waiting = list(jobs)
    running: dict[Connection, tuple[str, Any, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                name, job = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_run, args=(job, sender), daemon=True)
                process.start()
                sender.close()
                running[receiver] = (name, process, time.monotonic() + limit)
            soonest = min(end for _, _, end in running.values())
            ready = wait(list(running), timeout=max(0.0, soonest - time.monotonic()))
            for receiver in [connection for connection in running if connection in ready]:
                name, process, _ = running.pop(receiver)
                yield _received(name, receiver, process)
            for receiver, (name, process, end) in list(running.items()):
                if time.monotonic() >= end:
                    del running[receiver]
                    _stop(process)
                    yield _lost(name, f"it took longer than {limit:.0f} s")
    finally:
        for _, process, _ in running.values():
            _stop(process)


def _import_once() -> None:
    """What every row needs, here, so that the processes have it already."""
    for name in _NEEDED:
        importlib.import_module(name)


def _run(job: Callable[[], Row], sender: Connection) -> None:
    import torch

    os.setsid()  # so that what it starts ends with it
    torch.set_num_threads(1)  # many small operators: more threads only wait for each other
    sender.send_bytes(json.dumps(job().to_json()).encode())
    sender.close()


def _received(name: str, receiver: Connection, process: Any) -> Row:
    try:
        return Row(**json.loads(receiver.recv_bytes()))
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return _lost(name, f"its process died with {how}")
    finally:
        receiver.close()
        process.join()


def _lost(name: str, reason: str) -> Row:
    row = Row(name)
    row.end("structure", FAILED, reason)
    return row


def _stop(process: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
