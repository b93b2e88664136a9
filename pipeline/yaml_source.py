"""Where a configuration key stands in its YAML file, for messages that point at a line."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

MISSING: Any = object()


class YamlSource:
    """The YAML file behind one config group, and the files it inherits from.

    Nothing is read before the first question, since most configurations have no problem.

    Args:
        path: the YAML file; messages show it as given here.
        prefix: first part of the keys that this file holds, e.g. `recipe` for `recipe.prefetch.coefficient`.
    """

    def __init__(self, path: str | Path, prefix: str = "recipe") -> None:
        self.path = Path(path)
        self.prefix = prefix

    def line(self, key: str) -> int | None:
        """1-based line of a dotted key (with the prefix), None if this very file does not hold it."""
        return self._line(self._parts(key))

    def place(self, key: str, value: Any = MISSING) -> tuple[str | None, int | None]:
        """File and line of a key.

        Args:
            key: dotted, with the prefix.
            value: the composed value; a file that holds another one was overridden on the command line.

        Returns:
            (file, line), or (None, None) if the key, or its value, comes from the command line.
        """
        parts = self._parts(key)
        for source in self._chain():
            line = source._line(parts)
            if line is None:
                continue
            if value is not MISSING and not source._holds(parts, value):
                return None, None
            return str(source.path), line
        return None, None

    def _chain(self) -> Iterator["YamlSource"]:
        """This file, then what it inherits from, nearest first."""
        yield self
        for base in self._bases:
            yield from base._chain()

    def _parts(self, key: str) -> tuple[str, ...]:
        parts = tuple(key.split("."))
        return parts[1:] if parts[0] == self.prefix else parts

    @cached_property
    def _root(self) -> Any:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError

        try:
            # The node tree has marks for flow mappings too, and is independent of how values are resolved.
            return YAML().compose(self.path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, YAMLError):
            return None  # Composition has reported it already; here it only means: no line numbers.

    @cached_property
    def _values(self) -> Any:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError

        try:
            # The loader that composition uses: YAML dialects differ in what `1_000` or `0.7` is.
            return OmegaConf.to_container(OmegaConf.load(self.path), resolve=False)
        except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException):
            return None

    @cached_property
    def _bases(self) -> tuple["YamlSource", ...]:
        """Files named in the defaults list as `/group/option@_here_`, last first: later ones win."""
        defaults = self._values.get("defaults") if isinstance(self._values, dict) else None
        conf = next((p.parent for p in self.path.resolve().parents if p.name == self.prefix), None)
        if not isinstance(defaults, list) or conf is None:
            return ()
        names = [d.removeprefix("/").split("@")[0] for d in defaults if isinstance(d, str) and d.startswith("/")]
        files = [conf / f"{name}.yaml" for name in names]
        return tuple(YamlSource(f, self.prefix) for f in reversed(files) if f.is_file() and f != self.path.resolve())

    def _line(self, parts: tuple[str, ...]) -> int | None:
        node, line = self._root, None
        for part in parts:
            found = _child(node, part)
            if found is None:
                return None
            line, node = found
        return line

    def _holds(self, parts: tuple[str, ...], value: Any) -> bool:
        held = self._values
        for part in parts:
            try:
                held = held[int(part)] if isinstance(held, list) else held[part]
            except (KeyError, IndexError, TypeError, ValueError):
                return False
        if isinstance(held, str) and "${" in held:
            return True
        return bool(held == value)


def _child(node: Any, part: str) -> tuple[int, Any] | None:
    entries = getattr(node, "value", None)
    if not isinstance(entries, list):
        return None
    if entries and not isinstance(entries[0], tuple):
        if not part.isdecimal() or int(part) >= len(entries):
            return None
        item = entries[int(part)]
        return item.start_mark.line + 1, item
    # The last one of a repeated key is the one that counts.
    for key, value in reversed(entries):
        if key.value == part:
            return key.start_mark.line + 1, value
    return None
