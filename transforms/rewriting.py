"""Statements -> new text of one function. Every edit is an `ensure`: what is there already is not written again."""

from collections.abc import Iterable
from functools import cached_property
from itertools import groupby

import libcst as cst

from transforms import layout
from transforms.hoisting import NotHoistable, StatementEdit
from transforms.levers import PREFETCH, SUPERKERNEL, Lever
from transforms.reading import count_returns, meaning, parameters_of, prefetch_calls
from transforms.recording import Site
from transforms.replacement import Replacement
from transforms.scope_text import HELPER, Region, find_region, has_already, wrapped
from transforms.scoping import ScopeStatement
from transforms.signatures import with_parameters
from transforms.source_file import ParsedFunction
from transforms.statements import Statement
from transforms.telling import NotPlaceable

_FILLS = (" =", ":", " +=", ".append(", ".extend(", ".insert(")  # how an attribute, or a list in one, gets its content


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
        self._accepted: list[str] = []
        self._existing = prefetch_calls(function)
        self._regions: dict[int, Region] = {}  # id of the scope's statement
        self._told: dict[object, str] = {}  # phase that a statement of the body itself has told -> name
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
            call, whole = self._call_at(spot.site)
            edit = whole.inside(call)
            try:
                if spot.where == "after":
                    dependency, later = edit.name_result(call, spot.port, spot.child)
                else:
                    assert spot.port is not None
                    dependency, later = edit.name_argument(call, spot.port, spot.child), False
            except NotHoistable as reason:
                raise NotPlaceable(f"line {spot.site.line}: {reason}") from reason
        new = self._missing(statements, dependency)
        written = self._calls(new, dependency, edit.column, lasting=any(s is edit.statement for s in self.body))
        (edit.after if later else edit.before).extend(written)

    def open_scope(self, statement: ScopeStatement) -> bool:
        """Start a scope right before its first call; the calls of this method come in the order of execution, too.

        Returns:
            Whether it is new.

        Raises:
            NotPlaceable: the source does not allow it there.
        """
        assert statement.first.site is not None and statement.last.site is not None
        call, begin = self._call_at(statement.first.site)
        _, end = self._call_at(statement.last.site)
        region = find_region(self.function, statement, begin.statement, end.statement)
        arguments = [statement.label, *([f'"{statement.options}"'] if statement.options else [])]
        if has_already(self.function, region, arguments):
            return False
        try:
            region.start = begin.scope_start(call) if region.first is begin.statement else 0
        except NotHoistable as reason:
            raise NotPlaceable(f"line {statement.first.site.line}: {reason}") from reason
        indent = self.function.column(region.first)
        switch = self._scope_switch(statement, call, region, indent)
        switch = " and ".join([switch, *statement.conditions])
        if region.start or region.head:
            region.around = None
        room = indent + len("with ") + 1
        region.head.append(layout.call(HELPER, [switch, *arguments], room, self.width))
        self._regions[id(statement)] = region
        return True

    def close_scope(self, statement: ScopeStatement) -> None:
        """End the scope right behind its last call.

        Raises:
            NotPlaceable: likewise.
        """
        region = self._regions.get(id(statement))
        assert statement.last.site is not None
        call, edit = self._call_at(statement.last.site)
        if region is not None and region.last is edit.statement:
            child = next((part for part in reversed(statement.last.fqn.split(".")) if part.isidentifier()), "model")
            try:
                region.end = edit.scope_end(call, child)
            except NotHoistable as reason:
                raise NotPlaceable(f"line {statement.last.site.line}: {reason}") from reason
            if region.end is not None:
                region.around = None

    def _scope_switch(self, statement: ScopeStatement, call: cst.Call, region: Region, indent: int) -> str:
        guard = statement.guard
        if guard.kind == "caller":
            return SUPERKERNEL.passed
        if guard.kind == "entry":
            return self.guard(guard.test, SUPERKERNEL)
        wanted = call.args[statement.port] if isinstance(statement.port, int) else None
        named = [a for a in call.args if a.keyword is not None and a.keyword.value == statement.port]
        value = self.function.code_of((wanted or named[0]).value)
        if not value.isidentifier():
            raise NotPlaceable(f"nothing tells decode from prefill, and {value} has no name")
        expression = f"{SUPERKERNEL.switch} and {value}{guard.test}"
        switch = self._name_of_guard(expression, SUPERKERNEL)
        self.taken.add(switch)
        region.head.append(self._guard_line(switch, expression, indent))
        return switch

    def step_end(self, line: str) -> None:
        """Ensure a statement right before the function's only return, with all that it computes before.

        Raises:
            NotPlaceable: there are several returns.
        """
        last = self._only_return()
        if line in {self._code(s) for s in self.body}:
            return
        edit = self._edit(last)
        value = cst.ensure_type(last.body[0], cst.Return).value
        if value is not None and "self." in self.function.code_of(value):
            edit.name_value(value, "output")
        edit.before.append(self.function.parse(line))

    def guard(self, test: str, lever: Lever = PREFETCH) -> str:
        """Ensure the line that tells whether to use the lever in this run; returns the name (or switch) to ask."""
        return self._guard(f"{lever.switch} and {test}", lever) if test else lever.switch

    def accept(self, name: str) -> None:
        """Ensure a parameter that is False by default.

        Raises:
            NotPlaceable: the name is in use.
        """
        if name in self.parameter_names() or name in self._accepted:
            return
        if name in self.taken:
            raise NotPlaceable(f"the name {name} is in use in {self.function.node.name.value}")
        self.taken.add(name)
        self._accepted.append(name)
        self._header = with_parameters(self.function, self._accepted, self.width)

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
        heads = [f"self.{name}{fills}" for name in names for fills in _FILLS]
        found = [n for n, s in enumerate(self.body) if any(head in self._code(s) for head in heads)]
        self._ensure(text, (found[-1] + 1) if found else len(self.body))

    def assigns(self, name: str) -> bool:
        return any(f"self.{name} =" in self._code(s) for s in self.body)

    def parameter_names(self) -> list[str]:
        return [p.name.value for p in parameters_of(self.function.node)][1:]

    @property
    def changed(self) -> bool:
        edited = self._regions or any(edit.changed for edit in self._edits.values())
        return bool(self._top or self._at_top or self._inserted or edited or self._header is not self.function.node)

    def code(self) -> str:
        """The function's new lines."""
        edited = {key: (edit.statements(), len(edit.before) + 1) for key, edit in self._edits.items()}
        replace = Replacement(self.function, edited, list(self._regions.values()), self.width)
        items: list[tuple[cst.BaseStatement, list[cst.BaseStatement], int]] = []
        for index, statement in enumerate(self.body):
            items += [(new, [new], 1) for new in self._new_at(index)]
            items.append((statement, *replace.statement(statement)))
        items += [(new, [new], 1) for new in self._new_at(len(self.body))]
        block = cst.ensure_type(self.function.node.body, cst.IndentedBlock)
        body = wrapped(self.function, items, replace.of(block))
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

    @cached_property
    def _meanings(self) -> set[str]:
        return {meaning(self._code(statement)) for statement in self.body}

    def _code(self, statement: cst.BaseStatement) -> str:
        return self.function.code_of(statement.with_changes(leading_lines=()))

    def _ensure(self, text: str, index: int) -> None:
        lines = self._inserted.setdefault(index, [])
        if text not in lines and meaning(text) not in self._meanings:
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
        if count_returns(self.function.node) != 1 or not isinstance(last, cst.SimpleStatementLine):
            raise NotPlaceable(f"{self.function.node.name.value} does not end in its only return")
        if len(last.body) != 1 or not isinstance(last.body[0], cst.Return) or last.body[0].value is None:
            raise NotPlaceable(f"{self.function.node.name.value} does not end in its only return")
        return last

    def _returned(self, edit: StatementEdit, port: int | str | None) -> str:
        value = cst.ensure_type(edit.statement.body[0], cst.Return).value
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
            value = value.left if isinstance(value.left, cst.Tuple) else value  # `return (hidden_states,) + outputs`
        if isinstance(value, cst.Tuple) and isinstance(port, int) and port < len(value.elements):
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
            sizes = layout.sizes(statement.max_size, statement.offset)
            present = self._existing.get((statement.weight, dependency), [])
            if not present:
                missing.append(statement)
            elif sizes not in present:
                raise NotPlaceable(
                    f"the source prefetches {statement.weight} already, with {', '.join(present[0])} instead of "
                    f"{', '.join(sizes)}: start from the file without prefetch"
                )
        return missing

    def _calls(
        self, statements: list[Statement], dependency: str, indent: int, lasting: bool = False
    ) -> list[cst.BaseStatement]:
        """The calls, and in front of them what tells the phase; that is `lasting` for what comes behind it."""
        lines = []
        switches = dict(self._told)
        for statement in statements:
            guard = statement.spot.guard
            if guard.manner in switches:
                continue
            if guard.kind == "caller":
                switch = PREFETCH.passed
            elif guard.kind == "entry":
                switch = self.guard(guard.test)
            else:
                expression = f"{PREFETCH.switch} and {dependency}{guard.test}"
                switch = self._name_of_guard(expression, PREFETCH)
                lines.append(self._guard_line(switch, expression, indent))
                if lasting:
                    self._told[guard.manner] = switch
            switches[guard.manner] = switch
        for conditions, group in groupby(statements, key=lambda s: s.conditions):
            heads = layout.headers(conditions, indent, self.width)
            inner = indent + 4 * len(heads)
            texts = [self._call(s, switches[s.spot.guard.manner], dependency, inner) for s in group]
            lines += [layout.nested(heads, "\n".join(texts))] if heads else texts
        return [self.function.parse(line) for line in lines]

    def _call(self, statement: Statement, switch: str, dependency: str, indent: int) -> str:
        arguments = [switch, statement.weight, dependency, *layout.sizes(statement.max_size, statement.offset)]
        return layout.call("npu_prefetch", arguments, indent, self.width)

    def _guard(self, expression: str, lever: Lever) -> str:
        name = self._name_of_guard(expression, lever)
        line = self._guard_line(name, expression, self._indent())
        if line not in self._top and not any(self._is_guard(s, name, expression) for s in self.body):
            self._top.append(line)
            self.taken.add(name)
        return name

    def _name_of_guard(self, expression: str, lever: Lever) -> str:
        for name in lever.guard_names:
            if name not in self.taken or any(line.startswith(f"{name} = {expression}") for line in self._top):
                return name
            if any(self._is_guard(s, name, expression) for s in self.body):
                return name
        raise NotPlaceable(f"the names {', '.join(lever.guard_names)} are all in use")

    def _guard_line(self, name: str, expression: str, indent: int) -> str:
        return layout.commented(f"{name} = {expression}", "decode only", indent, self.width)

    def _is_guard(self, statement: cst.BaseStatement, name: str, expression: str) -> bool:
        return self._code(statement).partition("  #")[0] == f"{name} = {expression}"
