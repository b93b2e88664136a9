"""What holds for every patch of a file in `models/`."""

import subprocess
import sys
from pathlib import Path

from transforms.realisation import SourceResult

PROJECT = Path(__file__).parents[2]


def assert_clean_and_taken_back(result: SourceResult, folder: Path) -> None:
    """The rewritten file is as the project's ruff wants it, and the reverse patch restores it to the byte.

    Args:
        result: of a rewrite.
        folder: empty.
    """
    target = folder / "models" / result.path.name
    target.parent.mkdir()
    target.write_text(result.after)
    config = ["--config", str(PROJECT / "pyproject.toml")]
    for command in (["format", "--check"], ["check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, *config, str(target)], capture_output=True)
        assert done.returncode == 0, done.stdout.decode()
    subprocess.run(["patch", "-p1", "-s", "-R"], input=result.diff, text=True, cwd=folder, check=True)
    assert target.read_text() == result.before
