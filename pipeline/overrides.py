"""The pre-pass over the command line's overrides: what Hydra's grammar does not accept as a user types it.

`hydra.main` refuses a key that is not in the file unless it carries `+`, refuses one that is if it does, and accepts
any misspelt key with `+`. Here every override becomes `++` (changing and adding both work) and every key is checked
against the known ones; keys below `recipe`, `model`, `deployment` and `hardware` are checked by those who read them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.problems import Problem, hint

GROUPS = ("model", "recipe", "deployment", "hardware", "runtime", "backend")

# Top-level keys that are no groups, with their nested keys.
KEYS: dict[str, tuple[str, ...]] = {
    "verify": ("compiles", "numerics", "graph"),
    "transform": (),
    "format": (),
    "report": ("language",),
    "output": (),
    "trial": ("timeout", "fresh"),
    "sweep": ("fail_fast", "resume"),
    "profile": (),
    "analysis": ("coefficient", "phase", "decode_rows", "rank", "top"),
    "compare": ("targets",),
    "tree": (),
    "write": (),
    "revert": (),
}

# Their values are taken as they are: a path may hold spaces, commas and `=`, a hash may look like a number.
VERBATIM = ("output", "sweep.resume", "profile", "tree", "write", "revert", "model.path")

_TOKEN = re.compile(r"(?P<sign>\+\+|\+|~|)(?P<key>[^=]*?)(?:=(?P<value>.*))?", re.DOTALL)
_INDEX = r"\{\s*i\s*(?:[+-]\s*\d+\s*)?\}"
_PATH = re.compile(
    rf"(?:[A-Za-z_*]|{_INDEX})(?:[\w*.]|{_INDEX}|(?<=\.)\[[\d,\s-]+\])*(?:@[\w.]+)?(?::(?:input|output)\b)?"
)
_NEEDS_QUOTES = re.compile(rf"{_INDEX}|\.\[|@|:(?:input|output)$")
_A_PATH = re.compile(r"recipe\.prefetch\.targets\.[^.]+\.(?:weight|dependency|in)")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")


@dataclass(frozen=True)
class UserOverride:
    """One override, as typed and as Hydra gets it.

    Attributes:
        typed: what the user typed.
        sign: `++` (change or add), `~` (delete), or "" (a group's choice, Hydra's own keys).
        key: the dotted key or the group.
        values: the values of a sweep as texts in Hydra's grammar; one value if it is no sweep; empty for `~`.
        is_sweep: more than one value was asked for, even if by a range of one.
    """

    typed: str
    sign: str
    key: str
    values: tuple[str, ...]
    is_sweep: bool = False

    def hydra(self, value: str | None) -> str:
        """The override for one grid point."""
        return f"{self.sign}{self.key}" if value is None else f"{self.sign}{self.key}={value}"


def read_overrides(tokens: Sequence[str]) -> tuple[list[UserOverride], list[Problem]]:
    """Parse all overrides; a later one for the same key replaces an earlier one.

    Returns:
        The overrides that can be read, and a problem for each that can't be read or whose key is unknown.
    """
    result: dict[tuple[bool, str], UserOverride] = {}
    problems: list[Problem] = []
    for token in tokens:
        override, problem = _read(token)
        if problem is not None:
            problems.append(problem)
        if override is not None:
            result[override.sign == "~", override.key] = override
    return list(result.values()), problems


def quote(text: str) -> str:
    """A string as a quoted value of Hydra's grammar, safe for any content."""
    # A backslash means something only before a quote: those are doubled, and the quote gets its own.
    text = re.sub(r'(\\*)"', lambda m: m[1] * 2 + '\\"', text)
    text = re.sub(r"\\+$", lambda m: m[0] * 2, text)
    return '"' + text.replace("${", "\\${") + '"'


def quote_paths(value: str) -> str:
    """Quote the structural paths in a value that Hydra's grammar would trip over.

    `{weight: layers.{i}.mlp.x, dependency: layers.[0,2-5].y:input}` becomes
    `{weight: "layers.{i}.mlp.x", dependency: "layers.[0,2-5].y:input"}`; what is quoted already stays.
    """
    parts: list[str] = []
    at = 0
    while at < len(value):
        match = _QUOTED.match(value, at)
        if match:
            parts.append(match[0])
        elif match := _PATH.match(value, at):
            parts.append(f'"{match[0]}"' if _NEEDS_QUOTES.search(match[0]) else match[0])
        else:
            # Take a run of digits whole, so that the letters of `18MiB` do not start a path of their own.
            match = re.compile(r"\d+[\w.]*|.", re.DOTALL).match(value, at)
            assert match is not None
            parts.append(match[0])
        at = match.end()
    return "".join(parts)


def _read(token: str) -> tuple[UserOverride | None, Problem | None]:
    match = _TOKEN.fullmatch(token)
    assert match is not None
    sign, key, value = match["sign"], match["key"].strip(), match["value"]
    if not key or (value is None and sign != "~"):
        fix = "Write key=value; `npu-recipes --help` shows the keys."
        return None, Problem("error", "not-an-override", f"`{token}` is not an override", fix)
    problem = _unknown_key(key)
    if problem is not None:
        return None, problem
    if sign == "~":
        return UserOverride(token, "~", key, ()), None
    hydra_key = key in GROUPS or key.startswith(("hydra.", "hydra/"))
    return _parse(token, ("" if key in GROUPS else sign) if hydra_key else "++", key, value)


def _unknown_key(key: str) -> Problem | None:
    if key in ("hydra.mode", "hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir"):
        return Problem(
            "error",
            "owned-key",
            "the output directories and the mode are set by npu-recipes itself",
            "Use output=DIR for the place and -m for a sweep.",
            key,
        )
    if key.startswith(("hydra.", "hydra/")):
        return None
    top, _, rest = key.partition(".")
    if top == "recipe" and rest in ("model", "deployment", "hardware", "runtime"):
        # The groups are chosen before this value is composed: it would be shown, and do nothing.
        fix = f"Write {rest}=NAME." if rest != "model" else "Choose a recipe of that model."
        return Problem("error", "owned-key", f"`{key}` selects a group in the recipe's file only", fix, key)
    known = [*GROUPS, *KEYS]
    if top not in known:
        message = f"there is no key `{top}`.{hint(top, known)}"
        return Problem("error", "unknown-key", message, f"Known keys: {', '.join(known)}.", key)
    if top in KEYS and rest not in ("", *KEYS[top]):
        if not KEYS[top]:
            return Problem("error", "unknown-key", f"`{top}` is a single value and has no keys below it", "", key)
        message = f"`{top}` has no key `{rest}`.{hint(rest, KEYS[top])}"
        return Problem("error", "unknown-key", message, f"Known keys: {', '.join(KEYS[top])}.", key)
    return None


def _parse(token: str, sign: str, key: str, value: str) -> tuple[UserOverride | None, Problem | None]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    if key == "model.path" and value not in ("null", ""):
        # The same folder wherever the trial runs or is reproduced.
        text = value[1:-1] if _QUOTED.fullmatch(value) else value
        candidates = [quote(str(Path(text).expanduser().absolute()))]
    elif key in VERBATIM:
        candidates = [value if _QUOTED.fullmatch(value) or value == "null" else quote(value)]
    else:
        candidates = [quote_paths(value), value]
        if _A_PATH.fullmatch(key):  # not a path as it stands: whoever reads it says what is wrong with it
            candidates.append(quote(value))
    error: Exception | None = None
    for candidate in candidates:
        try:
            # The key does not matter to the grammar of values; a plain one keeps `/` and `@` out of the way.
            parsed = parser.parse_override(f"x={candidate}")
        except (HydraException, ValueError) as e:
            error = error or e
            continue
        if not parsed.is_sweep_override():
            return UserOverride(token, sign, key, (candidate,)), None
        if not parsed.is_discrete_sweep():
            message = f"`{value}` is an open interval, and a sweep needs single values"
            return None, Problem("error", "open-sweep", message, "Write them out, or use range(0.5,1.0,0.1).", key)
        if key.partition("@")[0] in GROUPS and "glob(" in candidate:
            return None, Problem("error", "open-sweep", "glob() is not supported", "List the names.", key)
        values = tuple(parsed.sweep_string_iterator())
        if parsed.is_range_sweep():
            values = tuple(map(_short, values))
        return UserOverride(token, sign, key, values, True), None
    fix = "Quote the value twice, once for the shell and once for Hydra: '" + f"{key}={quote(value)}'."
    if "=" in value:
        fix = f"Write a mapping with colons, `{{name: value}}`, or quote it: '{key}={quote(value)}'."
    return None, Problem("error", "cannot-parse", f"cannot read the value `{value}` ({_first_line(error)})", fix, key)


def _short(number: str) -> str:
    """A step of a range without the noise of binary fractions: 0.30000000000000004 becomes 0.3."""
    return format(float(number), ".12g") if "." in number else number


def _first_line(error: Any) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
