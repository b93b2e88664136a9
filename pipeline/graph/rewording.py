"""What the front end says about the transformed model, in the words of the recipe."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from transforms.plan import Plan

# Patterns of the front end's messages -> key below the target or scope, what it means. Several may match: first wins.
_SAID = (
    (r"max_size should be greater than zero, but got (-?\d+)", "max_size", "a prefetch of {0} bytes"),
    (r"offset should be nonnegative, but got (-?\d+)", "offset", "a prefetch from byte {0}"),
    (
        r"not implement when dependency is None",
        "dependency",
        "a prefetch that waits for nothing, which GE does not know",
    ),
    (r"no paired call to .*?(scope_exit|scope_end)", "scope", "a SuperKernel scope that is begun and not ended"),
    (r"must first call .*?(scope_enter|scope_begin)", "scope", "a SuperKernel scope that is ended and was not begun"),
    (r"No matching torch\.npu\.super_kernel_scope_begin", "scope", "a SuperKernel scope that ends with another label"),
    (r"ge converter is not implement", "", "an operator that the front end has no converter for"),
    (r"Call to `torch\._dynamo\.graph_break\(\)`|graph break", "", "a graph break: a decode step must be one graph"),
    (
        r"RecursionError",
        "",
        "a chain of modules that link to each other, too long for dynamo (on an NPU host it says the same)",
    ),
    (r"enable_prefetch (works|in exe_mode)", "prefetch", "prefetch in an execution mode or deployment without it"),
)
_KEYS = {"scope": "recipe.superkernel", "prefetch": "recipe.prefetch"}
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_CAUSE = re.compile(r"^\w*(?:Error|Exception|Interrupt|Unsupported)\b.*", re.MULTILINE)


@dataclass(frozen=True)
class Reworded:
    """An error of the front end.

    Attributes:
        text: one or two sentences.
        keys: recipe keys that may have caused it, and those of the scopes around; () if that can't be told.
    """

    text: str
    keys: tuple[str, ...] = ()


def reword(
    error: Mapping[str, Any], plan: Plan, source: str | None, scope_keys: Mapping[str, str] = MappingProxyType({})
) -> Reworded:
    """Say which key of the recipe caused it, and where in the rewritten source.

    Args:
        error: `type`, `message`, `trace` of the exception.
        plan: what was lowered.
        source: the rewritten source, None for a wrap.
        scope_keys: label of each scope -> key of the recipe that it comes from.
    """
    message = f"{error.get('message', '')}"
    lines = list(_own_lines(message + "\n" + str(error.get("trace", "")), source))
    key, meaning, original = "", "", ""
    for pattern, about, text in _SAID:
        if match := re.search(pattern, message):
            key, meaning = about, text.format(*match.groups())
            if error.get("type") != "Unsupported":  # whose first line says what it is about
                original = message[message.rfind("\n", 0, match.start()) + 1 :].splitlines()[0].strip()
            break
    keys = tuple(_keys(key, plan, lines))
    inside = tuple(_scopes_around(source or "", [number for number, _ in lines], scope_keys))
    if not original:
        original = (_CAUSE.findall(message) or message.strip().splitlines() or ["no message"])[0].strip()
    if not original.startswith(str(error.get("type"))):
        original = f"{error.get('type')}: {original}"
    where = f" at line {lines[-1][0]} of the rewritten source (`{lines[-1][1]}`)" if lines else ""
    where += f", inside a scope of {' or '.join(inside)}" if inside else ""
    begin = f"the front end refused {meaning}" if meaning else "the front end refused the decode step"
    caused = f"; set by {', '.join(keys)}" if keys else ""
    return Reworded(f"{begin}{where}{caused}. It said: {original[:400]}", (*keys, *inside))


def _own_lines(text: str, source: str | None) -> Iterator[tuple[int, str]]:
    """(number, text) of the lines of the rewritten source that the error names, innermost last."""
    if source is None:
        return
    lines = source.splitlines()
    for match in _FRAME.finditer(text):
        number = int(match["line"])
        if "/transformed/" in match["file"] and number <= len(lines):
            yield number, lines[number - 1].strip()


def _keys(key: str, plan: Plan, lines: list[tuple[int, str]]) -> Iterator[str]:
    if key in _KEYS:
        yield _KEYS[key]
        return
    field = f".{key}" if key else ""
    if not key and "npu_prefetch(" not in (lines[-1][1] if lines else ""):
        return  # not about a prefetch
    seen = set()
    for entry in plan.prefetch:
        # `self.mlps[0].gate_up_proj.weight` in the source is `...mlps.0.gate_up_proj.weight` in the plan.
        leaf = ".".join(entry.weight.rsplit(".", 2)[-2:])
        if any(leaf in text and "prefetch" in text for _, text in lines) and entry.target not in seen:
            seen.add(entry.target)
            yield f"recipe.prefetch.targets.{entry.target}{field}"


def _scopes_around(source: str, numbers: Collection[int], scope_keys: Mapping[str, str]) -> Iterator[str]:
    """Keys of the scopes whose `with` holds one of these lines of the source."""
    found: dict[str, None] = {}
    try:
        tree = ast.parse(source if scope_keys else "")
    except SyntaxError:  # which is then what the error says
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.With) or not any(node.lineno <= number <= _end(node) for number in numbers):
            continue
        for label in filter(None, (_label(item.context_expr) for item in node.items)):
            found |= dict.fromkeys(key for scope, key in scope_keys.items() if label.fullmatch(scope))
    yield from found


def _end(node: ast.With) -> int:
    return node.end_lineno or node.lineno


def _label(context: ast.expr) -> re.Pattern[str] | None:
    """The labels of `superkernel_scope(switch, f"moe_{self.layer_idx}", ...)`; None for another context."""
    if not isinstance(context, ast.Call) or not ast.unparse(context.func).endswith("superkernel_scope"):
        return None
    label = context.args[1] if len(context.args) > 1 else None
    if isinstance(label, ast.Constant):
        return re.compile(re.escape(str(label.value)))
    if isinstance(label, ast.JoinedStr):
        parts = (re.escape(str(v.value)) if isinstance(v, ast.Constant) else r".+" for v in label.values)
        return re.compile("".join(parts))
    return None
