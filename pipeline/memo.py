"""What did not change between the trials of one process is computed once, and each trial says what it reused."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def fingerprint(*parts: Any) -> str:
    """Canonical JSON of plain data, to be used as a key; equal data gives equal text."""
    return json.dumps(parts, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


class Memo:
    """Results by what they are and by everything that decides them.

    Only the newest `keep` keys of each kind are held: a sweep over models must not hold every model.
    """

    def __init__(self, keep: int = 4) -> None:
        self._keep = keep
        self._held: dict[str, dict[str, Any]] = {}
        self.reused: list[str] = []

    def get(self, what: str, key: str, make: Callable[[], T]) -> T:
        """The held result for (`what`, `key`), else `make()`.

        Args:
            what: the kind of result in words; reused kinds are listed in `reused`.
            key: `fingerprint` of everything that decides the result.
        """
        held = self._held.setdefault(what, {})
        if key in held:
            if what not in self.reused:
                self.reused.append(what)
            held[key] = held.pop(key)
            return held[key]
        value = make()
        held[key] = value
        while len(held) > self._keep:
            held.pop(next(iter(held)))
        return value

    def take_reused(self) -> list[str]:
        """What was reused since the last call, and start a new list."""
        taken, self.reused = self.reused, []
        return taken


MEMO = Memo()
