"""Text of generated statements, laid out so that ruff and Black leave it alone whatever line length they are given.

The length of a file's lines is often only guessed. A trailing comma keeps arguments on lines of their own also under a
longer limit, so nothing here uses the in-between layout (all arguments on one line of their own).
"""

from collections.abc import Sequence


def call(head: str, arguments: list[str], indent: int, width: int) -> str:
    """`head(a, b)` on one line if it fits, else one argument a line."""
    one_line = f"{head}({', '.join(arguments)})"
    if indent + len(one_line) <= width:
        return one_line
    return f"{head}(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"


def headers(conditions: Sequence[str], indent: int, width: int) -> list[str]:
    """`if a and b:` if it fits, else `if a:` and, inside of it, `if b:`; nothing without conditions."""
    one_line = f"if {' and '.join(conditions)}:"
    if conditions and indent + len(one_line) <= width:
        return [one_line]
    return [f"if {condition}:" for condition in conditions]


def nested(heads: Sequence[str], body: str) -> str:
    """The body below headers that are inside of each other."""
    for head in reversed(heads):
        body = f"{head}\n{indented(body)}"
    return body.rstrip("\n")


def commented(statement: str, comment: str, indent: int, width: int) -> str:
    """The statement with a comment at its end, or above it if the line would be too long."""
    if "\n" not in statement and indent + len(statement) + len(comment) + 4 <= width:
        return f"{statement}  # {comment}"
    return f"# {comment}\n{statement}"


def joined(statement: str, indent: int, width: int) -> str:
    """`x = (a\\n* b)` on one line, as formatters want it where that is short enough; "" for any other statement."""
    first, *inner = statement.splitlines()
    if not first.endswith(" (") or len(inner) < 2 or inner[-1].strip() != ")":
        return ""
    parts = [line.strip() for line in inner[:-1]]
    one_line = f"{first.removesuffix('(')}{' '.join(parts)}"
    fixed = any(part.endswith((",", "(", "[", "{")) for part in parts) or any(c in one_line for c in "#'\"")
    return "" if fixed or indent + len(one_line) > width else one_line


def size(number: int) -> str:
    """Bytes as people write them: `18 * 1024 * 1024`."""
    if number and number % 2**20 == 0:
        return f"{number // 2**20} * 1024 * 1024"
    if number and number % 2**10 == 0:
        return f"{number // 2**10} * 1024"
    return str(number)


def sizes(max_size: int, offset: int) -> list[str]:
    """The last arguments of a call."""
    return [size(max_size)] + ([size(offset)] if offset else [])


def indented(text: str, spaces: int = 4) -> str:
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())
