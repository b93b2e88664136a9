"""Problems that a user can fix: one record each, collected, raised once."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, Literal


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the user's input.

    Attributes:
        severity: `error` refuses the run, `warning` is shown beside the result.
        code: stable kebab-case identifier, e.g. `unknown-key`.
        message: what is wrong, and what exists instead.
        fix: what to do about it; a sentence, or "".
        key: dotted configuration key, e.g. `recipe.prefetch.targets.router.weight`.
        file: the file that holds the key, None for the command line.
        line: 1-based line in `file`.
    """

    severity: Literal["error", "warning"]
    code: str
    message: str
    fix: str = ""
    key: str | None = None
    file: str | None = None
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        where = " ".join(part for part in (self.key, f"({place})" if place else None) if part)
        text = f"{self.severity}: {where + ': ' if where else ''}{self.message}"
        return f"{text}\n  Fix: {self.fix}" if self.fix else text


class RefusedError(Exception):
    """The input was refused before anything ran. Holds every problem found, warnings included."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


def raise_errors(problems: Iterable[Problem]) -> list[Problem]:
    """Raise `RefusedError` with all problems if any of them is an error; else return them (warnings)."""
    problems = list(problems)
    if any(p.severity == "error" for p in problems):
        raise RefusedError(problems)
    return problems


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; None if nothing is close."""
    names = [str(name) for name in known]
    close = get_close_matches(word, names, 1, 0.6)
    if not close:  # a nested name (`group/name`) may be close by its last part only
        tails = {name.rsplit("/", 1)[-1]: name for name in names}
        close = [tails[tail] for tail in get_close_matches(word.rsplit("/", 1)[-1], list(tails), 1, 0.7)]
    return close[0] if close else None


def hint(word: str, known: Iterable[str]) -> str:
    """` Did you mean x?`, to follow a sentence, or "" if nothing known is close."""
    near = nearest(word, known)
    return f" Did you mean `{near}`?" if near is not None else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known word, or with all of them if none is close."""
    names = [str(name) for name in known]
    return hint(word, names).strip() or (f"Known: {', '.join(names)}." if names else "")
