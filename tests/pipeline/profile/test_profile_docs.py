"""docs/profiles.md knows every message and every kind that the reader knows."""

import re
from pathlib import Path
from typing import get_args

from pipeline.profile.rows import Kind

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")
CODE = re.compile(r"\"([a-z]+(?:-[a-z0-9]+)+)\"")
NOT_CODES = {"utf-8", "utf-16", "utf-8-sig"}


def names(table: str) -> set[str]:
    """What the first column of a table names."""
    return {
        name
        for cell in re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE)
        for name in re.findall(r"`([a-z0-9_-]+)`", cell)
    }


def test_every_message_is_explained_and_none_is_made_up():
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "pipeline" / "profile").glob("*.py"))
    codes = {code for source in sources for code in CODE.findall(source)} - NOT_CODES
    assert len(codes) > 12
    assert names(TEXT.split("## Messages")[1]) == codes


def test_every_kind_is_explained():
    assert names(TEXT.split("## What to capture")[1].split("## How")[0]) == set(get_args(Kind))
