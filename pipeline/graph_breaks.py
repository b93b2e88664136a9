"""What in a module's source cannot be part of a static graph: data-dependent control flow and host round trips.

A scope needs one static graph without a break. The graph rung proves that with the real front end; here the source is
read, so that the line is known before anything is lowered.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import nn

# Methods of tensors that bring values to the host, or whose result's shape depends on values.
_TO_HOST = {"item", "tolist", "cpu", "numpy"}
_DYNAMIC_SHAPE = {"nonzero", "masked_select", "unique"}
_BREAKS = {"graph_break"}
_DISABLED = {"disable"}
_REDUCTIONS = {"any", "all", "sum", "max", "min", "item", "equal", "allclose"}


@dataclass(frozen=True)
class Break:
    """One place in the source.

    Attributes:
        cls: class whose forward holds it.
        file, line: where.
        what: the reason, in words.
    """

    cls: str
    file: str
    line: int
    what: str


def graph_breaks(modules: Iterable[nn.Module]) -> list[Break]:
    """Breaks in the forward functions of these modules' classes, each class once, in source order."""
    found: list[Break] = []
    for cls, forward in dict.fromkeys((type(m), _forward(m)) for m in modules):
        if not cls.__module__.startswith("torch."):
            found += _of_class(cls, forward)  # type: ignore[arg-type]  # classes are hashable
    return found


def _forward(module: nn.Module) -> Callable[..., Any]:
    """What runs as forward: transformers lets the configuration choose an implementation of the experts."""
    forward = type(module).forward
    chosen = getattr(getattr(module, "config", None), "_experts_implementation", None)
    if inspect.isfunction(forward) and chosen is not None:
        outside = inspect.getclosurevars(forward).nonlocals
        if "experts_interface" in outside and "original_forward" in outside:
            return outside["experts_interface"].get_interface(chosen, outside["original_forward"])
    return forward


@cache
def _of_class(cls: type[nn.Module], forward: Callable[..., Any]) -> tuple[Break, ...]:
    """Breaks in forward and in the methods of the same class that it calls."""
    found: list[Break] = []
    pending, seen = ["forward"], {"forward"}
    while pending:
        name = pending.pop()
        method = forward if name == "forward" else getattr(cls, name, None)
        if method is None or not inspect.isfunction(method):
            continue
        try:
            lines, first = inspect.getsourcelines(method)
            file = inspect.getsourcefile(inspect.unwrap(method)) or "?"
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue  # no source (built in a session): nothing can be said
        found += (Break(cls.__name__, file, first + node.lineno - 1, what) for node, what in _breaks(tree))
        for name in _own_calls(tree):
            if name not in seen:
                seen.add(name)
                pending.append(name)
    return tuple(sorted(found, key=lambda b: (b.file, b.line)))


def _breaks(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert) and (call := _value_of(node.test)):
            yield node.test, f"control flow that depends on data (`{call}`)"
        elif isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if _last(decorator.func if isinstance(decorator, ast.Call) else decorator) in _DISABLED:
                    yield decorator, f"`{ast.unparse(decorator)}` keeps it out of the graph"
        elif isinstance(node, ast.Call):
            name = _last(node.func)
            if name in _BREAKS:
                yield node, f"`{ast.unparse(node.func)}()` breaks the graph"
            elif isinstance(node.func, ast.Attribute) and name in _TO_HOST and not node.args:
                yield node, f"`.{name}()` brings a value to the host"
            elif name in _DYNAMIC_SHAPE and isinstance(node.func, ast.Attribute):
                yield node, f"the shape of what `{name}` returns depends on data"
            elif isinstance(node.func, ast.Name) and name == "print":
                yield node, "`print` breaks the graph"


def _value_of(test: ast.expr) -> str:
    """A call in a condition that makes a tensor's value decide."""
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _REDUCTIONS:
            return ast.unparse(node)
    return ""


def _own_calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "self":
            yield node.func.attr


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
