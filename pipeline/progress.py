"""Progress and remarks for the person at the terminal: on stderr, one line each, so that logs of CI read well."""

import sys
import time


def say(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


class Stopwatch:
    """Seconds since it was made, for progress lines."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __str__(self) -> str:
        return f"{time.perf_counter() - self._start:.1f} s"
