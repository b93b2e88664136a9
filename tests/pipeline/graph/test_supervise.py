"""However a worker ends, the reason is told apart and nothing of it is left."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from pipeline.graph.supervise import Limits, interrupted_by_sigterm, supervise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 1 << 20


@pytest.fixture
def run(tmp_path):
    def start(code, timeout=30.0, stall=30.0, memory=1 << 30):
        log = tmp_path / "log"
        limits = Limits(timeout, stall, memory)
        return supervise([sys.executable, "-c", code], os.environ, log, limits), log.read_text()

    return start


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_has_its_code_and_output(run, code):
    ended, log = run(f"import sys; print('hello'); print('you', file=sys.stderr); sys.exit({code})")
    assert (ended.reason, ended.code) == ("exited", code)
    assert {"hello", "you"} == set(log.split())


@pytest.mark.parametrize("number", [9, 11])
def test_a_crash_has_its_signal(run, number):
    ended, _ = run(f"import os; os.kill(os.getpid(), {number})")
    assert (ended.reason, ended.code) == ("killed", number)


def test_a_process_that_hangs_and_swallows_sigterm_is_stopped(run):
    ended, _ = run("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)", stall=0.5)
    assert ended.reason == "stalled"
    assert ended.seconds < 5


def test_one_that_is_stopped_by_a_signal_hangs(run):
    ended, _ = run("import os; os.kill(os.getpid(), 19)", stall=0.5)  # SIGSTOP
    assert ended.reason == "stalled"
    assert ended.seconds < 5


SPIN = "import time\nwhile time.process_time() < {}: pass"


def test_one_that_computes_for_ever_is_stopped_by_its_cpu_time(run):
    ended, _ = run(SPIN.format(60), timeout=0.4)
    assert ended.reason == "timeout"
    assert 0.4 <= ended.cpu_seconds < 2


def test_one_that_gets_a_little_of_a_busy_host_may_take_long(run):
    # Much wall time, of which it gets a few per cent: more than the limit of CPU time, and no stall.
    code = "import time\nend = time.time() + 2\nwhile time.time() < end: sum(range(400000)); time.sleep(0.1)"
    ended, _ = run(code, timeout=1.5, stall=1.0)
    assert (ended.reason, ended.code) == ("exited", 0)
    assert ended.seconds > 1.5 > ended.cpu_seconds > 0


def test_wall_time_has_a_limit_all_the_same(run):
    code = "import time\nwhile True: sum(range(40000)); time.sleep(0.03)"
    ended, _ = run(code, timeout=0.3, stall=60)
    assert ended.reason == "timeout"


def test_cpu_time_of_children_counts(run):
    ended, _ = run(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN.format(60)!r}])", timeout=0.4)
    assert ended.reason == "timeout"
    assert ended.cpu_seconds >= 0.4


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
    run(code, stall=1.0)
    pid = int((tmp_path / "pid").read_text())
    assert ended_soon(pid)


def test_an_interrupt_while_waiting_stops_it_too(tmp_path):
    pid_file = tmp_path / "pid"
    code = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(30)"

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.7)
    try:
        with pytest.raises(KeyboardInterrupt):
            supervise([sys.executable, "-c", code], os.environ, tmp_path / "log", Limits())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert ended_soon(int(pid_file.read_text()))


def test_sigterm_is_an_interrupt_inside_and_nowhere_else():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(KeyboardInterrupt), interrupted_by_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_somebody_else_stays():
    def handler(*_):
        pass

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        with interrupted_by_sigterm():
            assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, previous)


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
