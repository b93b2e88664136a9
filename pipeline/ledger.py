"""The sweep's journal: one line of JSON per event, only ever appended, readable after a crash.

The states of a trial are explicit: queued, running, done, failed. A trial that was running when its sweep died is
found as `running` with nobody holding the lock, and runs again.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from models.problems import Problem, RefusedError
from pipeline.outputs import now

State = Literal["queued", "running", "done", "failed"]

# A resumed sweep queues everything again that is not done; a finished trial found again is queued, then done.
_NEXT: dict[str | None, tuple[State, ...]] = {
    None: ("queued",),
    "queued": ("queued", "running", "done", "failed"),
    "running": ("queued", "done", "failed"),
    "failed": ("queued",),
    "done": ("queued",),
}


class TransitionError(Exception):
    """A trial was moved to a state that it can't reach from where it is."""


class Ledger:
    """`ledger.jsonl` of one sweep directory; several processes may append to it at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "ledger.jsonl"

    def start(self, command: str, tokens: list[str]) -> None:
        """Note that the sweep starts (or is resumed) with these arguments."""
        self._append({"event": "sweep", "time": now(), "command": command, "tokens": tokens, "pid": os.getpid()})

    def finish(self, status: str) -> None:
        """Note that the sweep ended, with `ok`, `partial` or `failed`."""
        self._append({"event": "end", "time": now(), "status": status})

    def move(self, key: str, state: State, **details: Any) -> None:
        """Move a trial to a state.

        Raises:
            TransitionError: it can't get there from its present state.
        """
        with self._open() as file:
            present = self._states(file.read()).get(key)
            if state not in _NEXT[present]:
                raise TransitionError(f"trial {key} is {present or 'unknown'} and can't become {state}")
            self._write(file, {"event": "trial", "time": now(), "key": key, "state": state, **details})

    def states(self) -> dict[str, State]:
        """Trial key -> last state, in the order in which the trials were first queued."""
        return self._states(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}

    def queued(self, key: str) -> dict[str, Any]:
        """What was noted when a trial was last queued: its label and the overrides that a user types for it."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        found = [e for e in _events(text) if e.get("key") == key and e.get("state") == "queued"]
        return found[-1] if found else {}

    def tokens(self) -> list[str]:
        """The arguments of the sweep as last started; empty if this is no sweep directory."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        starts = [e for e in _events(text) if e.get("event") == "sweep"]
        return [str(t) for t in starts[-1]["tokens"]] if starts else []

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the sweep directory: two processes can't run the same sweep.

        Raises:
            RefusedError: another process runs it now.
        """
        with open(self.directory / ".lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as e:
                message = f"the sweep in {self.directory} is being run by another process"
                problem = Problem("error", "sweep-in-use", message, "Wait for it, or start a new one.", "sweep.resume")
                raise RefusedError([problem]) from e
            yield

    def _append(self, event: dict[str, Any]) -> None:
        with self._open() as file:
            self._write(file, event)

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        with open(self.path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            yield file

    @staticmethod
    def _write(file: Any, event: dict[str, Any]) -> None:
        file.seek(0)
        text = file.read()
        # A crash may have left half a line; it is closed, and skipped by readers.
        torn = "\n" if text and not text.endswith("\n") else ""
        file.write(torn + json.dumps(event, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())

    @staticmethod
    def _states(text: str) -> dict[str, State]:
        return {e["key"]: e["state"] for e in _events(text) if e.get("event") == "trial"}


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event
