"""A modeling file: its classes and functions by name, and LibCST trees of only the functions that are looked at.

Parsing a whole file of 4,000 lines with position metadata takes LibCST seconds. A rewrite touches a handful of
functions, so the file is indexed with `ast`, and LibCST parses single functions, once each.
"""

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

_MAX_WIDTH = 119  # what fits stays as it is under 120, too; the other way round it does not
_MIN_WIDTH = 79


class ParsedFunction:
    """The LibCST tree of one function, with positions as in the file.

    Args:
        text: the lines of the function, without decorators, indented as in the file.
        first_line: 1-based number of the first of these lines in the file.
    """

    def __init__(self, text: str, first_line: int) -> None:
        # One line on top makes an indented method parse; it is taken off again by `code`.
        self._head = "class _:" + ("\r\n" if "\r\n" in text else "\n")
        self._shift = first_line - 2
        self._ends_in_newline = text.endswith("\n")
        wrapper = MetadataWrapper(cst.parse_module(self._head + text), unsafe_skip_copy=True)
        self.module = wrapper.module
        self.positions = wrapper.resolve(PositionProvider)
        self.parents = wrapper.resolve(ParentNodeProvider)
        body = cst.ensure_type(self.module.body[0], cst.ClassDef).body
        self.node = cst.ensure_type(body.body[0], cst.FunctionDef)
        self.names = {node.value for node in self.positions if isinstance(node, cst.Name)}

    @cached_property
    def _calls(self) -> dict[tuple[int, int], cst.Call]:
        return {
            (span.end.line, span.end.column): node
            for node, span in self.positions.items()
            if isinstance(node, cst.Call)
        }

    def call_ending_at(self, line: int, column: int) -> cst.Call | None:
        """The call expression whose closing parenthesis ends there: no two calls share it."""
        return self._calls.get((line - self._shift, column))

    def column(self, node: cst.CSTNode) -> int:
        return self.positions[node].start.column

    def statement_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """The innermost statement, simple line or compound, that contains the node."""
        while not isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            node = self.parents[node]
        return node

    def parse(self, text: str) -> cst.BaseStatement:
        """One new statement (which may be compound), with the file's indentation and line ends."""
        return cst.parse_statement(text, config=self.module.config_for_parsing)

    def code_of(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node).strip()

    def code(self, node: cst.FunctionDef) -> str:
        """The lines of the function after its node has been replaced."""
        return cst.ensure_type(self.module.deep_replace(self.node, node), cst.Module).code.removeprefix(self._head)


@dataclass(frozen=True)
class SourceFile:
    """The text of a modeling file and where its classes, functions and imports are."""

    path: Path
    text: str
    _parsed: dict[int, ParsedFunction] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, path: Path) -> "SourceFile":
        return cls(path, path.read_bytes().decode("utf-8"))

    @cached_property
    def lines(self) -> list[str]:
        return lines_of(self.text)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def functions(self) -> dict[str, list[ast.FunctionDef]]:
        """Qualified name -> definitions, in file order (several if one name is defined more than once)."""
        found: dict[str, list[ast.FunctionDef]] = {}
        _collect(self.tree.body, "", found)
        return found

    def function(self, qualified_name: str, line: int | None = None) -> ast.FunctionDef | None:
        """The definition that holds a line, or the one that counts (the last)."""
        definitions = self.functions.get(qualified_name, [])
        if line is not None:
            definitions = [f for f in definitions if f.lineno <= line <= (f.end_lineno or line)]
        return definitions[-1] if definitions else None

    def parsed(self, function: ast.FunctionDef) -> ParsedFunction:
        if function.lineno not in self._parsed:
            text = "".join(self.lines[function.lineno - 1 : function.end_lineno])
            self._parsed[function.lineno] = ParsedFunction(text, function.lineno)
        return self._parsed[function.lineno]

    @cached_property
    def top_level_names(self) -> set[str]:
        """Names that the file's top level defines or imports."""
        names: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        return names

    @cached_property
    def width(self) -> int:
        """Line length to keep: as configured for the tree, else the file's longest line, within reason."""
        configured = _configured_width(self.path)
        if configured:
            return configured
        longest = max((len(line.rstrip()) for line in self.lines), default=0)
        return min(max(longest, _MIN_WIDTH), _MAX_WIDTH)


def lines_of(text: str) -> list[str]:
    """Lines with their ends. Only the line ends of Python source: `str.splitlines` knows more."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def parameters(function: ast.FunctionDef) -> list[ast.arg]:
    """Named parameters without `self`, positional first."""
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][1:]


def default_of(function: ast.FunctionDef, name: str) -> ast.expr | None:
    """The default of a parameter, None if it has none."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = list(zip(reversed(positional), reversed(arguments.defaults), strict=False))
    pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
    return next((default for argument, default in pairs if argument.arg == name), None)


def is_rebound(function: ast.FunctionDef, name: str) -> bool:
    """Whether the function's body assigns the name."""
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function)
    )


def sometimes_assigned(function: ast.FunctionDef) -> set[str]:
    """Attributes of `self` that the function assigns on some paths only: `if role == "all": self.mlp = ...`."""
    mentioned = {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
    }
    mentioned |= {name for node in ast.walk(function) for name, _ in _registered(node)}
    return mentioned - _always_assigned(function.body)


def maybe_none(function: ast.FunctionDef) -> set[str]:
    """Attributes of `self` that the function may leave at None: `self.shared = None`, then only on some paths more."""
    names: set[str] = set()
    for statement in function.body:
        none = {
            target.attr
            for node in ast.walk(statement)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _is_maybe_none(node.value)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Attribute) and _is_self(target.value)
        }
        none |= {name for node in ast.walk(statement) for name, value in _registered(node) if _is_maybe_none(value)}
        names = (names - _always_assigned([statement])) | none
    return names


def _is_maybe_none(value: ast.expr) -> bool:
    if isinstance(value, ast.IfExp):
        return _is_maybe_none(value.body) or _is_maybe_none(value.orelse)
    return isinstance(value, ast.Constant) and value.value is None


def _always_assigned(body: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.attr for t in targets if isinstance(t, ast.Attribute) and _is_self(t.value)}
        elif isinstance(node, ast.Expr):
            names |= {name for name, _ in _registered(node.value)}
        elif isinstance(node, ast.If):
            names |= _always_assigned(node.body) & _always_assigned(node.orelse)
        elif isinstance(node, ast.With):
            names |= _always_assigned(node.body)
    return names


def _registered(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """Name and value of `self.register_parameter("name", value)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not _is_self(node.func.value):
        return []
    if node.func.attr not in ("register_parameter", "register_buffer", "register_module") or len(node.args) < 2:
        return []
    name = node.args[0]
    return [(name.value, node.args[1])] if isinstance(name, ast.Constant) and isinstance(name.value, str) else []


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _collect(body: list[ast.stmt], prefix: str, found: dict[str, list[ast.FunctionDef]]) -> None:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(prefix + node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            _collect(node.body, f"{prefix}{node.name}.", found)
        elif isinstance(node, ast.If | ast.Try):  # classes that exist only with some dependency installed
            _collect([*node.body, *node.orelse], prefix, found)


def _configured_width(path: Path) -> int | None:
    for folder in path.resolve().parents:
        if folder.name in ("site-packages", "dist-packages"):  # a tree above an environment is not the package's own
            return None
        for name in ("ruff.toml", ".ruff.toml", "pyproject.toml"):
            file = folder / name
            if file.is_file():
                found = re.search(r"^line[-_]length\s*=\s*(\d+)", file.read_text(encoding="utf-8"), re.MULTILINE)
                return int(found[1]) if found else None
    return None
