"""Add a parameter to a function, laid out as its other parameters are."""

from collections.abc import Iterable

import libcst as cst

from transforms import layout
from transforms.source_file import ParsedFunction


def with_parameters(function: ParsedFunction, names: Iterable[str], width: int) -> cst.FunctionDef:
    """The function's node with further named parameters that are False by default.

    Args:
        function: the function; it is not changed.
        names: the parameters, put behind the others.
        width: line length to keep.
    """
    node = function.node
    for name in names:
        node = _with_parameter(function, node, name, width)
    return node


def _with_parameter(function: ParsedFunction, node: cst.FunctionDef, name: str, width: int) -> cst.FunctionDef:
    typed = any(p.annotation is not None for p in (*node.params.params, *node.params.kwonly_params))
    new = _parameter(name, typed)
    keyword_only = bool(node.params.kwonly_params) or not isinstance(node.params.star_arg, cst.MaybeSentinel)
    kind = "kwonly_params" if keyword_only else "params"
    present = list(getattr(node.params, kind))
    if _is_multiline(function, node):
        params = node.params.with_changes(**{kind: _append_line(node, present, new)})
        return node.with_changes(params=params)
    params = node.params.with_changes(**{kind: [*_separated(present), new]})
    return _laid_out(function, node.with_changes(params=params), width)


def _parameter(name: str, typed: bool) -> cst.Param:
    space = cst.SimpleWhitespace(" " if typed else "")
    annotation = cst.Annotation(cst.Name("bool")) if typed else None
    return cst.Param(cst.Name(name), annotation, cst.AssignEqual(space, space), cst.Name("False"))


def _is_multiline(function: ParsedFunction, node: cst.FunctionDef) -> bool:
    return "\n" in function.module.code_for_node(node.params) or not isinstance(
        node.whitespace_before_params, cst.SimpleWhitespace
    )


def _append_line(node: cst.FunctionDef, present: list[cst.Param], new: cst.Param) -> list[cst.Param]:
    """One parameter a line. If more follow (`**kwargs`), the last comma leads to the next line already."""
    last = present[-1]
    if node.params.star_kwarg is not None:
        return [*present, new.with_changes(comma=last.comma)]
    between = present[-2].comma if len(present) > 1 else cst.Comma(whitespace_after=node.whitespace_before_params)
    new = new.with_changes(comma=last.comma, whitespace_after_param=last.whitespace_after_param)
    return [*present[:-1], last.with_changes(comma=between, whitespace_after_param=cst.SimpleWhitespace("")), new]


def _separated(present: list[cst.Param]) -> list[cst.Param]:
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [*present[:-1], present[-1].with_changes(comma=comma)] if present else []


def _laid_out(function: ParsedFunction, node: cst.FunctionDef, width: int) -> cst.FunctionDef:
    """A header that was on one line, broken if it no longer fits."""
    header = function.module.code_for_node(
        node.with_changes(body=cst.SimpleStatementSuite([cst.Pass()]), decorators=())
    )
    header = header[: header.rindex("pass")].strip()
    indent = function.column(function.node)
    if len(header) + indent <= width:
        return node
    start, end = header.index("("), header.rindex(")")
    result = header[end + 1 :]
    arguments = [part.strip() for part in _split(header[start + 1 : end])]
    text = layout.call(header[:start], arguments, indent, width - len(result))
    broken = cst.ensure_type(function.parse(f"{text}{result}\n    pass\n"), cst.FunctionDef)
    return node.with_changes(
        params=broken.params,
        whitespace_before_params=broken.whitespace_before_params,
        whitespace_after_name=broken.whitespace_after_name,
    )


def _split(arguments: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]
