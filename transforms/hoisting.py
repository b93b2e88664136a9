"""Give a tensor inside an expression a name without changing the order in which Python evaluates anything."""

import libcst as cst

from transforms import layout
from transforms.source_file import ParsedFunction
from transforms.swapping import Swap

# Nodes that decide whether, or how often, what is inside them runs.
_LAZY = (
    cst.Lambda,
    cst.ListComp,
    cst.SetComp,
    cst.DictComp,
    cst.GeneratorExp,
    cst.IfExp,
    cst.BooleanOperation,
)
_VIEWS = frozenset({"view", "reshape", "flatten", "unsqueeze", "squeeze", "transpose", "size", "dim"})
_HELD_VALUES = (cst.Arg, cst.Element, cst.StarredElement)


class NotHoistable(Exception):
    """A call sits where it can't be given a name of its own; the message says where."""


class StatementEdit:
    """What becomes of one statement: others before it, nodes inside it replaced by names, others after it.

    Args:
        function: the function it is in.
        statement: the statement.
        taken: names in use in the function; new ones are added.
        width: line length to keep.
        column: where the statement starts; as in the file if None.
    """

    def __init__(
        self,
        function: ParsedFunction,
        statement: cst.SimpleStatementLine,
        taken: set[str],
        width: int,
        column: int | None = None,
    ) -> None:
        self.function, self.statement, self.taken, self.width = function, statement, taken, width
        self.column = function.column(statement) if column is None else column
        self.before: list[cst.BaseStatement] = []
        self.after: list[cst.BaseStatement] = []
        self._names: dict[int, cst.Name] = {}
        self._arguments: dict[int, list[str]] = {}
        self._branches: tuple[StatementEdit, StatementEdit] | None = None

    def inside(self, call: cst.Call) -> "StatementEdit":
        """The edit of the statement in which the call runs whenever the statement does.

        `y = self.a(x) + 1 if c else z` becomes an `if` with one assignment in each branch, unless the call's result is
        the value; then this edit can do it.
        """
        small = self.statement.body[0] if len(self.statement.body) == 1 else None
        if (
            not isinstance(small, cst.Assign)
            or not isinstance(small.value, cst.IfExp)
            or self._gives(small.value, call)
        ):
            return self
        value = small.value
        sides = [n for n, side in enumerate((value.body, value.orelse)) if contains(side, call)]
        if not sides or id(call) in self._names:
            return self
        if self._branches is None:
            self._branches = (self._branch(small, value.body), self._branch(small, value.orelse))
        return self._branches[sides[0]].inside(call)

    def _branch(self, small: cst.Assign, value: cst.BaseExpression) -> "StatementEdit":
        bare = value.with_changes(lpar=(), rpar=()) if isinstance(value, cst.IfExp) else value
        line = self.statement.with_changes(body=[small.with_changes(value=bare)], leading_lines=())
        branch = StatementEdit(self.function, line, self.taken, self.width, self.column + 4)
        branch._names, branch._arguments = self._names, self._arguments
        return branch

    def _if(self) -> cst.If:
        assert self._branches is not None
        value = cst.ensure_type(cst.ensure_type(self.statement.body[0], cst.Assign).value, cst.IfExp)
        body, orelse = (cst.IndentedBlock(body=branch.statements()) for branch in self._branches)
        return cst.If(
            test=value.test, body=body, orelse=cst.Else(body=orelse), leading_lines=self.statement.leading_lines
        )

    def pass_on(self, call: cst.Call, name: str) -> None:
        """Add the argument `name=name` to a call, unless it is there."""
        if not any(a.keyword is not None and a.keyword.value == name for a in call.args):
            names = self._arguments.setdefault(id(call), [])
            if name not in names:
                names.append(name)

    def name_result(self, call: cst.Call, port: int | str | None, child: str) -> tuple[str, bool]:
        """A name for the call's result (or one element of it).

        Returns:
            The expression, and whether it exists only after the statement (else it exists before it).

        Raises:
            NotHoistable: the statement decides whether, or how often, the call runs.
        """
        small = self._small()
        if (
            id(call) not in self._names
            and isinstance(small, cst.Assign | cst.AnnAssign)
            and self._gives(small.value, call)
        ):
            name = self._target(small, port, child)
            if name:
                return name, True
        self._hoist_before(call)
        name = self._hoist(call, f"{child}_output")
        return (name if port is None else f"{name}[{port}]"), False

    def name_argument(self, call: cst.Call, port: int | str, child: str) -> str:
        """A name for an argument of the call, with everything before the argument evaluated already.

        Raises:
            NotHoistable: likewise, or the argument is inside `*` or `**`.
        """
        wanted = _argument(call, port)
        self._hoist_before(call.func)
        for argument in call.args:
            if argument is wanted and not isinstance(argument.value, cst.Name):
                self._hoist(argument.value, f"{child}_input")
            elif argument is not wanted and _holds(argument, (cst.Call,)):
                self._hoist(argument.value, f"{_callee(argument.value)}_output")
        value = self._names.get(id(wanted.value), wanted.value)
        return cst.ensure_type(value, cst.Name).value

    def scope_start(self, call: cst.Call) -> int:
        """Let everything that Python evaluates before it enters the call happen before.

        Returns:
            How many of the statements before the original one are outside of a scope that starts with the call.

        Raises:
            NotHoistable: likewise.
        """
        if any(computes(earlier) for earlier in _evaluated_before(_value(self._small()), call)):
            self._hoist_before(call)
        for argument in call.args:
            if computes(argument.value) and id(argument.value) not in self._names:
                if argument.star:
                    raise NotHoistable("the call passes its arguments by *")
                self._hoist_before(call)
                self._hoist(argument.value, f"{_callee(argument.value)}_output")
        return len(self.before)

    def scope_end(self, call: cst.Call, child: str) -> int | None:
        """Let everything that is made of the call's result happen after.

        Returns:
            How many of the statements before the original one are inside of a scope that ends with the call; None:
            the original one is inside, too.

        Raises:
            NotHoistable: likewise.
        """
        small = self._small()
        if id(call) not in self._names:
            plain = isinstance(small, cst.Assign | cst.AnnAssign | cst.Expr)
            if plain and _without_views(_value(small)) is call:
                return None
            self._hoist_before(call)
            self._hoist(call, f"{child}_output")
        name = self._names[id(call)].value
        return 1 + next(n for n, s in enumerate(self.before) if self._assigns(s, name))

    def _gives(self, value: cst.CSTNode | None, call: cst.Call) -> bool:
        """Whether a value is the call's result: also of `self.a(x) if c else self.a(x, y)`, which calls `self.a`."""
        if not isinstance(value, cst.IfExp):
            return value is call
        branches = (value.body, value.orelse)
        if not any(branch is call for branch in branches):
            return False
        functions = {self.function.code_of(b.func) for b in branches if isinstance(b, cst.Call)}
        return all(isinstance(branch, cst.Call) for branch in branches) and len(functions) == 1

    def _assigns(self, statement: cst.BaseStatement, name: str) -> bool:
        return self.function.code_of(statement.with_changes(leading_lines=())).startswith(f"{name} = ")

    def name_value(self, value: cst.BaseExpression, name: str) -> str:
        """A name for the whole value of the statement."""
        return self._hoist(value, name)

    @property
    def changed(self) -> bool:
        return bool(self.before or self.after or self._names or self._arguments or self._branches)

    def statements(self) -> list[cst.BaseStatement]:
        """The statements that replace the original one."""
        main: cst.BaseStatement
        if self._branches is not None:
            main = self._if()
        else:
            main = self._main(one_a_line=False)
            if self._arguments and self._too_long(main):
                main = self._main(one_a_line=True)
            main = self._joined(main) if self._names else main
        if self.before:  # a comment above the statement stays on top
            lead = self.statement.leading_lines
            self.before[0] = self.before[0].with_changes(leading_lines=lead)
            main = main.with_changes(leading_lines=())
        return [*self.before, main, *self.after]

    def _small(self) -> cst.BaseSmallStatement:
        if len(self.statement.body) != 1:
            raise NotHoistable("the call shares its line with another statement")
        return self.statement.body[0]

    def _target(self, small: cst.Assign | cst.AnnAssign, port: int | str | None, child: str) -> str | None:
        """The plain name that the assignment gives to the result already."""
        if isinstance(small, cst.Assign) and len(small.targets) != 1:
            return None
        target = small.targets[0].target if isinstance(small, cst.Assign) else small.target
        if isinstance(target, cst.Name):
            return target.value if port is None else f"{target.value}[{port}]"
        if not isinstance(target, cst.Tuple) or not isinstance(port, int):
            return None
        if any(isinstance(element, cst.StarredElement) for element in target.elements[: port + 1]):
            return None
        element = target.elements[port].value
        if not isinstance(element, cst.Name):
            return None
        if element.value == "_":  # the value was ignored: it gets a name
            if id(element) not in self._names:
                self._names[id(element)] = cst.Name(self._new_name(f"{child}_output"))
            return self._names[id(element)].value
        return element.value

    def _hoist_before(self, node: cst.BaseExpression) -> None:
        small = self._small()
        value = _value(small)
        if _holds(small, (cst.NamedExpr, cst.Await, cst.Yield)):
            raise NotHoistable("the statement has a walrus, await or yield")
        if isinstance(small, cst.AugAssign) and _holds(small.target, (cst.Call,)):
            raise NotHoistable("the target of the augmented assignment has a call")
        for earlier in _evaluated_before(value, node):
            self._hoist(earlier, f"{_callee(earlier)}_output")

    def _hoist(self, node: cst.BaseExpression, name: str) -> str:
        if id(node) not in self._names:
            bare = node.visit(Swap(self._names, self._arguments))
            assert isinstance(bare, cst.BaseExpression)
            bare = bare.with_changes(lpar=(), rpar=())
            new = self._new_name(name)
            code = self.function.module.code_for_node(bare)
            multiline_binary = "\n" in code and not isinstance(bare, cst.Call)
            self.before.append(self.function.parse(f"{new} = ({code})" if multiline_binary else f"{new} = {code}"))
            self._names[id(node)] = cst.Name(new)
        return self._names[id(node)].value

    def _main(self, one_a_line: bool) -> cst.SimpleStatementLine:
        swap = Swap(self._names, self._arguments, one_a_line)
        return cst.ensure_type(self.statement.visit(swap), cst.SimpleStatementLine)

    def _too_long(self, statement: cst.SimpleStatementLine) -> bool:
        lines = self.function.code_of(statement.with_changes(leading_lines=())).splitlines()
        return len(lines[0]) + self.column > self.width

    def _joined(self, statement: cst.BaseStatement) -> cst.BaseStatement:
        text = layout.joined(self.function.code_of(statement.with_changes(leading_lines=())), self.column, self.width)
        return self.function.parse(text).with_changes(leading_lines=self.statement.leading_lines) if text else statement

    def _new_name(self, name: str) -> str:
        free = next(n for n in (name, *(f"{name}_{k}" for k in range(2, 1000))) if n not in self.taken)
        self.taken.add(free)
        return free


def _evaluated_before(root: cst.CSTNode, node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Outermost expressions with calls that Python evaluates before `node`, in order. A name or constant can wait."""
    if root is node:
        return []
    if isinstance(root, _LAZY):
        raise NotHoistable(f"a {type(root).__name__} decides whether or how often the call runs")
    if isinstance(root, cst.Comparison) and len(root.comparisons) > 1:
        raise NotHoistable("a chained comparison decides whether the call runs")
    found: list[cst.BaseExpression] = []
    for child in root.children:
        if contains(child, node):
            return found + _evaluated_before(child, node)
        if not _holds(child, (cst.Call,)):
            continue
        value = child.value if isinstance(child, _HELD_VALUES) else child
        if not isinstance(value, cst.BaseExpression):
            raise NotHoistable("a subscript or format expression with a call is evaluated before it")
        found.append(value)
    raise AssertionError("the node is not below the root")


def _value(small: cst.BaseSmallStatement) -> cst.BaseExpression:
    value = getattr(small, "value", None)
    if not isinstance(small, cst.Assign | cst.AnnAssign | cst.AugAssign | cst.Expr | cst.Return) or value is None:
        raise NotHoistable(f"the call is in a statement of kind {type(small).__name__.lower()}")
    return value


def _is_view(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _VIEWS


def _without_views(node: cst.BaseExpression) -> cst.BaseExpression:
    """`self.a(x)` of `self.a(x).view(-1)`."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _VIEWS:
        node = node.func.value
    return node


def computes(node: cst.CSTNode) -> bool:
    """Whether it has a call that may launch a kernel."""
    return (isinstance(node, cst.Call) and not _is_view(node)) or any(computes(child) for child in node.children)


def contains(root: cst.CSTNode, node: cst.CSTNode) -> bool:
    return root is node or any(contains(child, node) for child in root.children)


def _holds(root: cst.CSTNode, kinds: tuple[type[cst.CSTNode], ...]) -> bool:
    return isinstance(root, kinds) or any(_holds(child, kinds) for child in root.children)


def _argument(call: cst.Call, port: int | str) -> cst.Arg:
    if any(argument.star == "*" for argument in call.args):
        raise NotHoistable("the call passes its arguments by *")
    if isinstance(port, int):
        return call.args[port]
    named = [a for a in call.args if a.keyword is not None and a.keyword.value == port]
    if not named:
        raise NotHoistable(f"the call passes {port} by **")
    return named[0]


def _callee(node: cst.CSTNode) -> str:
    """`act_fn` of `self.act_fn(x)`."""
    function = node.func if isinstance(node, cst.Call) else None
    while isinstance(function, cst.Subscript):
        function = function.value
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else "value"
