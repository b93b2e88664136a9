"""Progress and remarks for the person at the terminal: on stderr, one line each, so that logs of CI read well."""

import re
import sys
import time
from pathlib import Path


def say(text: str) -> None:
    """One line on stderr; paths below the working directory are relative to it."""
    print(shortened(text), file=sys.stderr, flush=True)


def shown(path: Path) -> str:
    """A path as short as it can be typed here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def shortened(text: str) -> str:
    """A text with the working directory taken off the paths in it."""
    here = str(Path.cwd())
    return text if here == "/" else re.sub(rf"(?<![\w./-]){re.escape(here)}/(?=\S)", "", text)


class Stopwatch:
    """Seconds since it was made, for progress lines."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __str__(self) -> str:
        return f"{time.perf_counter() - self._start:.1f} s"
