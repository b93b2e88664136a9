"""Text of generated statements, laid out as ruff and Black would."""


def call(head: str, arguments: list[str], indent: int, width: int) -> str:
    """`head(a, b)` on one line if it fits, else the arguments on their own line, else one argument a line."""
    one_line = f"{head}({', '.join(arguments)})"
    if indent + len(one_line) <= width:
        return one_line
    joined = ", ".join(arguments)
    if indent + 4 + len(joined) <= width:
        return f"{head}(\n    {joined}\n)"
    return f"{head}(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"


def commented(statement: str, comment: str, indent: int, width: int) -> str:
    """The statement with a comment at its end, or above it if the line would be too long."""
    if indent + len(statement) + len(comment) + 4 <= width:
        return f"{statement}  # {comment}"
    return f"# {comment}\n{statement}"


def size(number: int) -> str:
    """Bytes as people write them: `18 * 1024 * 1024`."""
    if number and number % 2**20 == 0:
        return f"{number // 2**20} * 1024 * 1024"
    if number and number % 2**10 == 0:
        return f"{number // 2**10} * 1024"
    return str(number)


def indented(text: str, spaces: int = 4) -> str:
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())
