"""Which statements of a function a scope holds, and their re-indentation below its `with`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from transforms.hoisting import computes
from transforms.scoping import ScopeStatement
from transforms.source_file import ParsedFunction
from transforms.telling import NotPlaceable

HELPER = "superkernel_scope"
_LOOPS = (cst.For, cst.While)


@dataclass
class Region:
    """The statements of one block that a scope holds.

    Attributes:
        block: the block.
        first, last: its first and last statement, which may be rewritten as several.
        start: how many of the statements that replace `first` are outside.
        end: how many of those that replace `last` are inside; None: all up to the original one, but none behind it.
        head: statements in front, and the expression that makes the context.
        around: a `with` whose whole body it is, if any: that one gets the context, too.
    """

    block: cst.CSTNode
    first: cst.BaseStatement
    last: cst.BaseStatement
    start: int = 0
    end: int | None = None
    head: list[str] = field(default_factory=list)
    around: cst.With | None = None


def find_region(
    function: ParsedFunction, statement: ScopeStatement, begin: cst.SimpleStatementLine, end: cst.SimpleStatementLine
) -> Region:
    """The smallest region that holds both statements.

    Raises:
        NotPlaceable: it holds more than the scope, or less, or the scope would be left in its middle.
    """
    begins, ends = list(_levels(function, begin)), list(_levels(function, end))
    if statement.loop:
        begins, ends = _outside_loops(begins), _outside_loops(ends)
        if begins[0][1] is begin and ends[0][1] is end:
            raise NotPlaceable(f"{statement.first.fqn} or {statement.last.fqn} is called in a loop of another function")
    found = ((b, one, other) for b, one in begins for c, other in ends if b is c)
    block, first, last = next(found)
    region = Region(block, first, last)
    parent = function.parents[block]
    inside = _body(block)
    if isinstance(parent, cst.With) and (inside[0], inside[-1]) == (first, last) and not parent.asynchronous:
        region.around = parent
    _refuse_others(function, statement, region)
    if not statement.loop:
        _refuse_more(begins, first, statement.first.fqn, before=True)
        _refuse_more(ends, last, statement.last.fqn, before=False)
    _refuse_exits(region, begin, end)
    return region


def has_already(function: ParsedFunction, region: Region, arguments: list[str]) -> bool:
    """Whether the source has this very scope.

    Args:
        function: the function.
        region: of the scope.
        arguments: of its `with`, but for the switch.

    Raises:
        NotPlaceable: it has another one there.
    """
    existing = [(node, call) for node in function.positions if (call := _scope_call(node)) is not None]
    inside = _body(region.block)
    whole = inside[0] is region.first and inside[-1] is region.last
    for node, call in existing:
        same = [function.code_of(argument.value) for argument in call.args[1:]] == arguments
        if same and whole and cst.ensure_type(node, cst.With).body is region.block:
            return True
    for node, call in existing:
        if _is_inside(function, region.first, node) or any(_contains(s, node) for s in _statements(region)):
            label = function.code_of(call.args[1].value) if len(call.args) > 1 else "?"
            raise NotPlaceable(f"the source has a scope {label} there already: start from the file without scopes")
    return False


def wrapped(
    function: ParsedFunction,
    items: Sequence[tuple[cst.BaseStatement, Sequence[cst.BaseStatement], int]],
    regions: Sequence[Region],
) -> list[cst.BaseStatement]:
    """The statements of a block, with those of every region below its `with`.

    Args:
        function: the function.
        items: original statement, what it has become, and how many of these are not behind the original one.
        regions: of this block.
    """
    place = {id(original): n for n, (original, _, _) in enumerate(items)}
    out: list[cst.BaseStatement] = []
    stack: list[tuple[Region, list[cst.BaseStatement]]] = []  # open ones and what they hold
    for original, new, main in items:
        for position in range(len(new) + 1):
            while stack and stack[-1][0].last is original and _end(stack[-1][0], main) == position:
                region, held = stack.pop()
                (stack[-1][1] if stack else out).extend(_below(function, region.head, held))
            if any(region.last is original and _end(region, main) == position for region, _ in stack):
                raise NotPlaceable("two scopes overlap")
            starting = [region for region in regions if region.first is original and region.start == position]
            # Scopes of different layers may share statements: the switch tells which is meant. The larger is outside.
            starting.sort(key=lambda r: (place[id(r.last)], math.inf if r.end is None else r.end), reverse=True)
            stack += [(region, []) for region in starting]
            if position < len(new):
                (stack[-1][1] if stack else out).append(new[position])
    return out


def _end(region: Region, main: int) -> int:
    return main if region.end is None else region.end


def _below(function: ParsedFunction, head: Sequence[str], held: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    *before, context = head
    lead = held[0].leading_lines  # type: ignore[attr-defined]
    inside = [held[0].with_changes(leading_lines=()), *held[1:]]
    block = cst.ensure_type(function.parse(f"with {context}:\n    pass\n"), cst.With)
    body = cst.ensure_type(block.body, cst.IndentedBlock).with_changes(body=inside)
    statements: list[cst.BaseStatement] = [*map(function.parse, before), block.with_changes(body=body)]
    statements[0] = statements[0].with_changes(leading_lines=lead)
    return statements


def with_contexts(
    function: ParsedFunction, original: cst.With, node: cst.With, new: Sequence[str], width: int
) -> cst.With:
    """What has become of a `with`, with more contexts."""
    contexts = [function.code_of(item.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for item in original.items]
    header = f"with {', '.join([*contexts, *new])}:"
    if "\n" in header or function.column(original) + len(header) > width:
        lines = "".join(f"    {line},\n" for line in [*contexts, *(c.replace("\n", "\n    ") for c in new)])
        header = f"with (\n{lines}):"
    parsed = cst.ensure_type(function.parse(f"{header}\n    pass\n"), cst.With)
    return parsed.with_changes(body=node.body, leading_lines=node.leading_lines)


def _levels(function: ParsedFunction, node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.BaseStatement]]:
    """(block, statement of the block that holds the node), innermost first."""
    while node is not function.node:
        parent = function.parents[node]
        if isinstance(parent, cst.IndentedBlock) and isinstance(node, cst.BaseStatement):
            yield parent, node
        node = parent


def _outside_loops(
    levels: list[tuple[cst.CSTNode, cst.BaseStatement]],
) -> list[tuple[cst.CSTNode, cst.BaseStatement]]:
    outermost = max((n for n, (_, s) in enumerate(levels) if isinstance(s, _LOOPS)), default=0)
    return levels[outermost:]


def _refuse_more(
    levels: list[tuple[cst.CSTNode, cst.BaseStatement]], outermost: cst.BaseStatement, fqn: str, before: bool
) -> None:
    """A compound statement at the edge of the scope must not compute anything on the far side of the call."""
    for block, statement in levels:
        if statement is outermost:
            return
        body = _body(block)
        place = next(n for n, s in enumerate(body) if s is statement)
        others = body[:place] if before else body[place + 1 :]
        if any(computes(other) for other in others):
            side, word = ("before", "begin") if before else ("after", "end")
            raise NotPlaceable(f"the scope would {word} in the middle of a block that computes more {side} {fqn}")


def _refuse_exits(region: Region, begin: cst.CSTNode, end: cst.CSTNode) -> None:
    edges = {id(s) for s in (begin, end) if s is region.first or s is region.last}
    for statement in _statements(region):
        if id(statement) not in edges and _holds(statement, (cst.Return, cst.Raise)):
            raise NotPlaceable("the scope would hold a return")


def _refuse_others(function: ParsedFunction, statement: ScopeStatement, region: Region) -> None:
    """The region must hold exactly the calls that were made from entering the first to leaving the last module."""
    edges = [s for s in (region.first, region.last) if isinstance(s, cst.SimpleStatementLine)]
    for call, planned in statement.beside:
        assert call.site is not None
        node = function.call_ending_at(call.site.end_line, call.site.end_column)
        if node is None or any(_contains(edge, node) for edge in edges):
            continue
        held = any(_contains(s, node) for s in _statements(region))
        if held != planned:
            what = f"would hold {call.fqn}, too" if held else f"would not hold {call.fqn}"
            raise NotPlaceable(f"from {statement.first.fqn} to {statement.last.fqn}, the scope {what}")


def _statements(region: Region) -> Sequence[cst.BaseStatement]:
    body = _body(region.block)
    places = [n for n, s in enumerate(body) if s is region.first or s is region.last]
    return body[places[0] : places[-1] + 1]


def _body(block: cst.CSTNode) -> Sequence[cst.BaseStatement]:
    return cst.ensure_type(block, cst.IndentedBlock).body


def _scope_call(node: cst.CSTNode) -> cst.Call | None:
    if isinstance(node, cst.With):
        for item in node.items:
            if isinstance(item.item, cst.Call):
                name = item.item.func.attr if isinstance(item.item.func, cst.Attribute) else item.item.func
                if isinstance(name, cst.Name) and name.value == HELPER:
                    return item.item
    return None


def _is_inside(function: ParsedFunction, node: cst.CSTNode, other: cst.CSTNode) -> bool:
    while node is not function.node:
        if node is other:
            return True
        node = function.parents[node]
    return False


def _contains(root: cst.CSTNode, node: cst.CSTNode) -> bool:
    return root is node or any(_contains(child, node) for child in root.children)


def _holds(root: cst.CSTNode, kinds: tuple[type[cst.CSTNode], ...]) -> bool:
    return isinstance(root, kinds) or any(_holds(child, kinds) for child in root.children)
