"""Replaces an attribute for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of a module, class or instance, and put back what was there, also if that was inherited."""
    own = vars(owner)
    before = own.get(name, own)  # `own` itself: nothing was there
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is own:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
