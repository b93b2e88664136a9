"""However a worker ends, the reason is told apart and nothing of it is left."""

import os
import sys
import time
from pathlib import Path

import pytest

from pipeline.graph.supervise import supervise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 1 << 20


@pytest.fixture
def run(tmp_path):
    def start(code, timeout=30.0, memory=1 << 30):
        log = tmp_path / "log"
        return supervise([sys.executable, "-c", code], os.environ, log, timeout, memory), log.read_text()

    return start


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_has_its_code_and_output(run, code):
    ended, log = run(f"import sys; print('hello'); print('you', file=sys.stderr); sys.exit({code})")
    assert (ended.reason, ended.code) == ("exited", code)
    assert {"hello", "you"} == set(log.split())


@pytest.mark.parametrize("signal", [9, 11])
def test_a_crash_has_its_signal(run, signal):
    ended, _ = run(f"import os; os.kill(os.getpid(), {signal})")
    assert (ended.reason, ended.code) == ("killed", signal)


def test_a_process_that_hangs_and_swallows_sigterm_is_stopped(run):
    ended, _ = run("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)", timeout=0.3)
    assert ended.reason == "timeout"
    assert ended.seconds < 5


def test_one_that_eats_memory_is_stopped(run):
    ended, _ = run("x = []\nwhile True: x.append(b'x' * (10 << 20)); import time; time.sleep(0.005)", memory=120 * MIB)
    assert ended.reason == "memory"
    assert ended.peak_bytes > 120 * MIB


def test_memory_of_children_counts(run):
    child = "import time; x = b'x' * (150 << 20); time.sleep(30)"
    ended, _ = run(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])", memory=120 * MIB)
    assert ended.reason == "memory"


@pytest.mark.parametrize("last", ["time.sleep(30)", "pass"])
def test_children_end_with_it(run, tmp_path, last):
    # Also those that outlive their parent (`pass`).
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(30)"
    wait = f"while not os.path.exists({str(tmp_path / 'pid')!r}): time.sleep(0.01)"
    code = f"import os, subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n{wait}\n{last}"
    run(code, timeout=1.5)
    pid = int((tmp_path / "pid").read_text())
    assert ended_soon(pid)


def test_an_interrupt_while_waiting_stops_it_too(tmp_path):
    import signal

    pid_file = tmp_path / "pid"
    code = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(30)"

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.7)
    try:
        with pytest.raises(KeyboardInterrupt):
            supervise([sys.executable, "-c", code], os.environ, tmp_path / "log", 30, 1 << 30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert ended_soon(int(pid_file.read_text()))


def ended_soon(pid: int) -> bool:
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # dead; who adopted it has not collected it yet
            return True
        time.sleep(0.01)
    return False
