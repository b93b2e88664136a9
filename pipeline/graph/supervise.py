"""Runs a process that may crash, hang or eat the memory, and leaves nothing of it behind."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL = 0.05  # seconds
_PROGRESS = 0.005  # share of the wall time that a process gets as CPU time unless it hangs, on the busiest host
_WALL = 10  # most wall time, in limits of CPU time
_TICK = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True)
class Limits:
    """What a process and its children may use.

    Attributes:
        timeout: seconds of CPU time; ten times as much of wall time. Where CPU time can't be seen, of wall time.
        stall: seconds of wall time in which it gets next to no CPU time: it hangs.
        memory_bytes: resident.
    """

    timeout: float = 300.0
    stall: float = 120.0
    memory_bytes: int = 8 << 30


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        reason: `exited`, `killed` (by a signal that was not ours), `timeout`, `stalled` or `memory`.
        code: exit code, or number of the signal for `killed`.
        seconds: how long it ran.
        peak_bytes: most memory seen resident, of the process and its children; 0 where that can't be seen.
        cpu_seconds: CPU time seen, of the process and its children; 0 where that can't be seen.
    """

    reason: str
    code: int
    seconds: float
    peak_bytes: int
    cpu_seconds: float = 0.0


def supervise(command: Sequence[str], environment: Mapping[str, str], log: Path, limits: Limits) -> Ended:
    """Run a command in a session of its own until it ends or exceeds a limit; then nothing of that session is left.

    Args:
        command: what to run.
        environment: complete.
        log: gets stdout and stderr.
        limits: of the process and its children together.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its own process group, which can be killed as a whole
        )
        watch = _Watch(process.pid, limits)
        reason = ""
        try:
            while not reason and not _has_ended(process.pid):
                reason = watch.look()
                time.sleep(_POLL)
        finally:
            _kill_session(process)
    code = process.returncode
    if not reason:
        reason = "exited" if code >= 0 else "killed"
    return Ended(reason, abs(code), watch.seconds, watch.peak, watch.cpu)


class _Watch:
    """Looks at a session now and then.

    Attributes:
        peak: most resident bytes seen.
        cpu: seconds of CPU time seen.
    """

    def __init__(self, session: int, limits: Limits) -> None:
        self.session, self.limits = session, limits
        self.begin = time.perf_counter()
        self.peak, self.cpu = 0, 0.0
        self._moved_at, self._moved_cpu = self.begin, 0.0

    @property
    def seconds(self) -> float:
        """Wall time until now."""
        return time.perf_counter() - self.begin

    def look(self) -> str:
        """The limit that is exceeded, "" for none."""
        members = _members(self.session)
        used = sum(map(_resident, members))
        self.peak = max(self.peak, used)
        times = [seconds for member in members if (seconds := _cpu_seconds(member)) is not None]
        self.cpu = max(self.cpu, sum(times))  # less when a child ended that nobody collected
        now = time.perf_counter()
        if self.cpu - self._moved_cpu >= _PROGRESS * self.limits.stall:
            self._moved_at, self._moved_cpu = now, self.cpu
        if used > self.limits.memory_bytes:
            return "memory"
        if self.cpu > self.limits.timeout or now - self.begin > self.limits.timeout * (_WALL if times else 1):
            return "timeout"
        return "stalled" if times and now - self._moved_at > self.limits.stall else ""


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM would end this process on the spot, with files and children left: inside it is an interrupt (Ctrl-C).

    A handler that somebody else has installed stays; and only the main thread may install one.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _has_ended(process: int) -> bool:
    """Without collecting it: until it is collected, its number, and that of its group, can't be given to another."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_session(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL: torchair's handlers are known to swallow SIGTERM."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _resident(process: int) -> int:
    """Resident bytes; 0 without /proc."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _cpu_seconds(process: int) -> float | None:
    """CPU time of a process and of its children that ended; None without /proc."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) * _TICK  # utime, stime, cutime, cstime
    except (OSError, ValueError, IndexError):
        return None


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
