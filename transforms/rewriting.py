"""Statements -> new text of one function. Every edit is an `ensure`: what is there already is not written again."""

from collections.abc import Iterable
from itertools import groupby

import libcst as cst

from transforms import layout
from transforms.hoisting import NotHoistable, StatementEdit
from transforms.placing import Statement
from transforms.reaching import NotPlaceable
from transforms.recording import Site
from transforms.signatures import with_parameter
from transforms.source_file import ParsedFunction

SWITCH = "self.enable_prefetch"
PASSED_SWITCH = "prefetch"  # the parameter of functions that can't tell the phase themselves
_GUARD_NAMES = ("prefetch", "prefetch_now", "npu_prefetch_now")


class FunctionRewrite:
    """The edits of one function; the parsed function itself is never changed.

    Args:
        function: the function.
        width: line length to keep.
    """

    def __init__(self, function: ParsedFunction, width: int) -> None:
        self.function, self.width = function, width
        self.taken = set(function.names)
        self._edits: dict[int, StatementEdit] = {}
        self._top: list[str] = []
        self._at_top: list[cst.BaseStatement] = []
        self._inserted: dict[int, list[str]] = {}  # index in the body -> lines in front of it
        self._header = function.node
        self._existing = _prefetch_calls(function)
        if not isinstance(function.node.body, cst.IndentedBlock):
            raise NotPlaceable(f"the body of {function.node.name.value} is on the line of its def")
        self.body = list(function.node.body.body)

    def prefetch(self, statements: list[Statement]) -> None:
        """Write statements that hang on the same tensor at the same place, in order.

        Calls of this method come in the order of execution, so that edits of one line compose.

        Raises:
            NotPlaceable: the source does not allow it there; nothing has been changed.
        """
        spot = statements[0].spot
        if spot.where == "entry":
            names = self.parameter_names()
            dependency = names[spot.port] if isinstance(spot.port, int) else str(spot.port)
            new = self._missing(statements, dependency)
            self._at_top += self._calls(new, dependency, self._indent())
            return
        if spot.where == "return":
            edit = self._edit(self._only_return())
            dependency, later = self._returned(edit, spot.port), False
        else:
            assert spot.site is not None
            call, edit = self._call_at(spot.site)
            try:
                if spot.where == "after":
                    dependency, later = edit.name_result(call, spot.port, spot.child)
                else:
                    assert spot.port is not None
                    dependency, later = edit.name_argument(call, spot.port, spot.child), False
            except NotHoistable as reason:
                raise NotPlaceable(f"line {spot.site.line}: {reason}") from reason
        new = self._missing(statements, dependency)
        written = self._calls(new, dependency, self.function.column(edit.statement))
        (edit.after if later else edit.before).extend(written)

    def guard(self, test: str) -> str:
        """Ensure the line that tells whether to prefetch in this run; returns the name (or switch) to ask."""
        return self._guard(f"{SWITCH} and {test}") if test else SWITCH

    def accept(self, name: str) -> None:
        """Ensure a parameter that is False by default.

        Raises:
            NotPlaceable: the name is in use.
        """
        if name in self.parameter_names():
            return
        if name in self.taken:
            raise NotPlaceable(f"the name {name} is in use in {self.function.node.name.value}")
        self.taken.add(name)
        self._header = with_parameter(self.function, name, self.width)

    def pass_on(self, site: Site, name: str) -> None:
        """Ensure that the call passes `name=name`."""
        call, edit = self._call_at(site)
        edit.pass_on(call, name)

    def after_super(self, line: str) -> None:
        """Ensure a statement of `__init__` right after `super().__init__(...)`."""
        index = next((n + 1 for n, s in enumerate(self.body) if "super().__init__(" in self._code(s)), None)
        self._ensure(line, index if index is not None else self._first())

    def after_assignment(self, names: Iterable[str], text: str) -> None:
        """Ensure a statement of `__init__` after the attributes that it needs have been set."""
        heads = [f"self.{name} =" for name in names]
        heads += [f"self.{name}:" for name in names]
        found = [n for n, s in enumerate(self.body) if any(head in self._code(s) for head in heads)]
        self._ensure(text, (found[-1] + 1) if found else len(self.body))

    def assigns(self, name: str) -> bool:
        return any(f"self.{name} =" in self._code(s) for s in self.body)

    def parameter_names(self) -> list[str]:
        return [p.name.value for p in _parameters(self.function.node)][1:]

    @property
    def changed(self) -> bool:
        edited = any(edit.changed for edit in self._edits.values())
        return bool(self._top or self._at_top or self._inserted or edited or self._header is not self.function.node)

    def code(self) -> str:
        """The function's new lines."""
        edited = {key: edit.statements() for key, edit in self._edits.items() if edit.changed}
        body: list[cst.BaseStatement] = []
        for index, statement in enumerate(self.body):
            body += self._new_at(index)
            new = statement.visit(_Replace(edited))
            if isinstance(new, cst.FlattenSentinel):
                body += new
            elif isinstance(new, cst.BaseStatement):
                body.append(new)
        body += self._new_at(len(self.body))
        block = cst.ensure_type(self.function.node.body, cst.IndentedBlock)
        return self.function.code(self._header.with_changes(body=block.with_changes(body=body)))

    def _new_at(self, index: int) -> list[cst.BaseStatement]:
        new = [self.function.parse(text) for text in self._inserted.get(index, [])]
        if index == self._first():
            new = [*new, *(self.function.parse(line) for line in self._top), *self._at_top]
        return new

    def _first(self) -> int:
        return 1 if self.function.node.get_docstring() is not None else 0

    def _indent(self) -> int:
        return self.function.column(self.body[0])

    def _code(self, statement: cst.BaseStatement) -> str:
        return self.function.code_of(statement.with_changes(leading_lines=()))

    def _ensure(self, text: str, index: int) -> None:
        lines = self._inserted.setdefault(index, [])
        if text not in lines and text not in {self._code(s) for s in self.body}:
            lines.append(text)
        if not lines:
            del self._inserted[index]

    def _call_at(self, site: Site) -> tuple[cst.Call, StatementEdit]:
        call = self.function.call_ending_at(site.end_line, site.end_column)
        if call is None:
            raise NotPlaceable(f"line {site.line}: the source has no call there")
        statement = self.function.statement_of(call)
        if not isinstance(statement, cst.SimpleStatementLine):
            raise NotPlaceable(f"line {site.line}: the call is in the header of a compound statement")
        return call, self._edit(statement)

    def _edit(self, statement: cst.SimpleStatementLine) -> StatementEdit:
        if id(statement) not in self._edits:
            self._edits[id(statement)] = StatementEdit(self.function, statement, self.taken, self.width)
        return self._edits[id(statement)]

    def _only_return(self) -> cst.SimpleStatementLine:
        last = self.body[-1]
        if _count_returns(self.function.node) != 1 or not isinstance(last, cst.SimpleStatementLine):
            raise NotPlaceable(f"{self.function.node.name.value} does not end in its only return")
        if len(last.body) != 1 or not isinstance(last.body[0], cst.Return) or last.body[0].value is None:
            raise NotPlaceable(f"{self.function.node.name.value} does not end in its only return")
        return last

    def _returned(self, edit: StatementEdit, port: int | str | None) -> str:
        value = cst.ensure_type(edit.statement.body[0], cst.Return).value
        if isinstance(value, cst.Tuple) and isinstance(port, int):
            element = value.elements[port].value
            if isinstance(element, cst.Name):
                return element.value
        if isinstance(value, cst.Name):
            return value.value if port is None else f"{value.value}[{port}]"
        if port is not None or value is None:
            raise NotPlaceable("the returned tensor has no name")
        return edit.name_value(value, "output")

    def _missing(self, statements: list[Statement], dependency: str) -> list[Statement]:
        missing = []
        for statement in statements:
            sizes = _sizes(statement)
            present = self._existing.get((statement.weight, dependency), [])
            if not present:
                missing.append(statement)
            elif sizes not in present:
                raise NotPlaceable(
                    f"the source prefetches {statement.weight} already, with {', '.join(present[0])} instead of "
                    f"{', '.join(sizes)}: start from the file without prefetch"
                )
        return missing

    def _calls(self, statements: list[Statement], dependency: str, indent: int) -> list[cst.BaseStatement]:
        if not statements:
            return []
        guard = statements[0].spot.guard
        lines = []
        if guard.kind == "caller":
            switch = PASSED_SWITCH
        elif guard.kind == "entry":
            switch = self.guard(guard.test)
        else:
            expression = f"{SWITCH} and {dependency}{guard.test}"
            switch = self._name_of_guard(expression)
            lines.append(self._guard_line(switch, expression, indent))
        for conditions, group in groupby(statements, key=lambda s: s.conditions):
            inner = indent + 4 if conditions else indent
            texts = [self._call(statement, switch, dependency, inner) for statement in group]
            if conditions:
                lines.append(f"if {' and '.join(conditions)}:\n" + layout.indented("\n".join(texts)))
            else:
                lines += texts
        return [self.function.parse(line) for line in lines]

    def _call(self, statement: Statement, switch: str, dependency: str, indent: int) -> str:
        sizes = _sizes(statement)
        return layout.call("npu_prefetch", [switch, statement.weight, dependency, *sizes], indent, self.width)

    def _guard(self, expression: str) -> str:
        name = self._name_of_guard(expression)
        line = self._guard_line(name, expression, self._indent())
        if line not in self._top and not any(self._is_guard(s, name, expression) for s in self.body):
            self._top.append(line)
            self.taken.add(name)
        return name

    def _name_of_guard(self, expression: str) -> str:
        for name in _GUARD_NAMES:
            free = name not in self.taken
            if free or any(line.startswith(f"{name} = {expression}") for line in self._top):
                return name
            if any(self._is_guard(s, name, expression) for s in self.body):
                return name
        raise NotPlaceable(f"the names {', '.join(_GUARD_NAMES)} are all in use")

    def _guard_line(self, name: str, expression: str, indent: int) -> str:
        return layout.commented(f"{name} = {expression}", "decode only", indent, self.width)

    def _is_guard(self, statement: cst.BaseStatement, name: str, expression: str) -> bool:
        return self._code(statement).partition("  #")[0] == f"{name} = {expression}"


class _Replace(cst.CSTTransformer):
    def __init__(self, edited: dict[int, list[cst.BaseStatement]]) -> None:
        super().__init__()
        self.edited = edited

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        new = self.edited.get(id(original_node))
        return updated_node if new is None else cst.FlattenSentinel(new)


def _sizes(statement: Statement) -> list[str]:
    return [layout.size(statement.max_size)] + ([layout.size(statement.offset)] if statement.offset else [])


def _prefetch_calls(function: ParsedFunction) -> dict[tuple[str, str], list[list[str]]]:
    """(weight, dependency) -> size, and offset if given, of each call that is in the function already."""
    found: dict[tuple[str, str], list[list[str]]] = {}
    for node in function.positions:
        if isinstance(node, cst.Call) and len(node.args) >= 4:
            name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
            if isinstance(name, cst.Name) and name.value == "npu_prefetch":
                weight, dependency, *sizes = (function.code_of(argument.value) for argument in node.args[1:])
                found.setdefault((weight, dependency), []).append(sizes)
    return found


def _parameters(function: cst.FunctionDef) -> list[cst.Param]:
    return [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]


def _count_returns(node: cst.CSTNode) -> int:
    if isinstance(node, cst.Return):
        return 1
    inner = (c for c in node.children if not isinstance(c, cst.FunctionDef | cst.Lambda | cst.ClassDef))
    return sum(_count_returns(child) for child in inner)
