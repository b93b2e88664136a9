"""Runs a process that may crash, hang or eat the memory, and leaves nothing of it behind."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL = 0.02  # seconds
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        reason: `exited`, `killed` (by a signal that was not ours), `timeout` or `memory`.
        code: exit code, or number of the signal for `killed`.
        seconds: how long it ran.
        peak_bytes: most memory seen resident, of the process and its children; 0 where that can't be seen.
    """

    reason: str
    code: int
    seconds: float
    peak_bytes: int


def supervise(
    command: Sequence[str], environment: Mapping[str, str], log: Path, timeout: float, memory_bytes: int
) -> Ended:
    """Run a command in a session of its own until it ends or exceeds a limit; then nothing of that session is left.

    Args:
        command: what to run.
        environment: complete.
        log: gets stdout and stderr.
        timeout: seconds.
        memory_bytes: of resident memory, of all its processes together.
    """
    begin = time.perf_counter()
    peak = 0
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its own process group, which can be killed as a whole
        )
        reason = ""
        try:
            while not _has_ended(process.pid):
                peak = max(peak, used := _resident(process.pid))
                if used > memory_bytes:
                    reason = "memory"
                    break
                if time.perf_counter() - begin > timeout:
                    reason = "timeout"
                    break
                time.sleep(_POLL)
        finally:
            _kill_session(process)
    code = process.returncode
    if not reason:
        reason = "exited" if code >= 0 else "killed"
    return Ended(reason, abs(code), time.perf_counter() - begin, peak)


def _has_ended(process: int) -> bool:
    """Without collecting it: until it is collected, its number, and that of its group, can't be given to another."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_session(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL: torchair's handlers are known to swallow SIGTERM."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _resident(session: int) -> int:
    """Resident bytes of all processes of a session; 0 without /proc."""
    total = 0
    for process in _members(session):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
    return total


def _members(session: int) -> list[int]:
    found = [session]
    todo = [session]
    while todo:
        with contextlib.suppress(OSError, ValueError):
            process = todo.pop()
            children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
            todo += [int(child) for child in children]
            found += [int(child) for child in children]
    return found
