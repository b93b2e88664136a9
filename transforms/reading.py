"""What a function has already."""

import ast

import libcst as cst

from transforms.source_file import ParsedFunction


def prefetch_calls(function: ParsedFunction) -> dict[tuple[str, str], list[list[str]]]:
    """(weight, dependency) -> size, and offset if given, of each call that is in the function already."""
    found: dict[tuple[str, str], list[list[str]]] = {}
    for node in function.positions:
        if isinstance(node, cst.Call) and len(node.args) >= 4:
            name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
            if isinstance(name, cst.Name) and name.value == "npu_prefetch":
                weight, dependency, *sizes = (function.code_of(argument.value) for argument in node.args[1:])
                found.setdefault((weight, dependency), []).append(sizes)
    return found


def count_returns(node: cst.CSTNode) -> int:
    """Returns of a function, those of inner functions left out."""
    if isinstance(node, cst.Return):
        return 1
    inner = (c for c in node.children if not isinstance(c, cst.FunctionDef | cst.Lambda | cst.ClassDef))
    return sum(count_returns(child) for child in inner)


def meaning(text: str) -> str:
    """Of a statement, its comments and layout left out."""
    return ast.dump(ast.parse(text))


def parameters_of(function: cst.FunctionDef) -> list[cst.Param]:
    """All named parameters, `self` included."""
    return [*function.params.posonly_params, *function.params.params, *function.params.kwonly_params]
