"""Which calls of a function are bound to run once another one has."""

import ast

from transforms.recording import Recording, Site
from transforms.telling import join

_BRANCHES = ("body", "orelse", "finalbody", "handlers")
_LAZY = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
Block = tuple[tuple[int, str], ...]  # (line of a compound statement, which of its branches), outermost first


def is_called_later(recording: Recording, site: Site | None, owner: str, path: str) -> bool:
    """Whether an instance calls what is at `path` below it in any case once it has run the call at `site`.

    Then the path exists on every instance that gets there, and nobody has to ask.
    """
    if site is None:
        return False
    definition = recording.source.function(site.function, site.line)
    if definition is None:
        return False
    here = _block(definition.body, site.line)
    for call in recording.decode.by_module.get(join(owner, path), []):
        there = call.site
        if call.owner != owner or there is None or there.function != site.function or there.line < site.line:
            continue
        block = _block(definition.body, there.line)
        if here[: len(block)] == block and not _uncertain(definition, site.line, there.line):
            return True
    return False


def _block(body: list[ast.stmt], line: int) -> Block:
    for statement in body:
        if statement.lineno <= line <= (statement.end_lineno or line):
            if isinstance(statement, ast.Match):
                return ((statement.lineno, f"line {line}"),)  # its cases have no lines of their own
            for name in _BRANCHES:
                inner = getattr(statement, name, None)
                if isinstance(inner, list) and inner and inner[0].lineno <= line <= inner[-1].end_lineno:
                    return ((statement.lineno, name), *_block(inner, line))
    return ()


def _uncertain(definition: ast.FunctionDef, first: int, last: int) -> bool:
    """Whether something between the two lines may leave the function or loop, or the last line is evaluated lazily."""
    for node in ast.walk(definition):
        if isinstance(node, _EXITS) and first <= node.lineno < last:
            return True
        if isinstance(node, _LAZY) and node.lineno <= last <= (node.end_lineno or last):
            return True
    return False
