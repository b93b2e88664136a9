"""Replace expressions by names and add arguments to calls, inside one statement."""

from collections.abc import Mapping

import libcst as cst


class Swap(cst.CSTTransformer):
    """Replace nodes by names, and add arguments to calls; both given by identity."""

    def __init__(
        self, names: Mapping[int, cst.Name], arguments: Mapping[int, list[str]], one_a_line: bool = False
    ) -> None:
        super().__init__()
        self.names, self.arguments, self.one_a_line = names, arguments, one_a_line

    def on_visit(self, node: cst.CSTNode) -> bool:
        return id(node) not in self.names

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        if id(original) in self.names:
            return self.names[id(original)]
        if id(original) in self.arguments:
            call = cst.ensure_type(updated, cst.Call)
            for name in self.arguments[id(original)]:
                call = _add_argument(call, name)
            return _one_a_line(call) if self.one_a_line else call
        return updated


def _add_argument(call: cst.Call, name: str) -> cst.Call:
    """The call with `name=name` at the end, laid out as its other arguments are."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(cst.Name(name), keyword=cst.Name(name), equal=equal)
    if not call.args:
        return call.with_changes(args=[new])
    last = call.args[-1]
    if isinstance(last.comma, cst.Comma):  # one argument a line: the next one goes on a line of its own
        between = call.args[-2].comma if len(call.args) > 1 else None
        comma = between if isinstance(between, cst.Comma) else cst.Comma(whitespace_after=call.whitespace_before_args)
        new = new.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
    else:
        new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        last = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*call.args[:-1], last, new])


def _one_a_line(call: cst.Call) -> cst.Call:
    inside = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))
    commas = [cst.Comma(whitespace_after=inside)] * (len(call.args) - 1)
    commas += [cst.Comma(whitespace_after=cst.ParenthesizedWhitespace(indent=True))]
    args = [a.with_changes(comma=comma) for a, comma in zip(call.args, commas, strict=True)]
    return call.with_changes(whitespace_before_args=inside, args=args)
