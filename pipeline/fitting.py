"""A table where it fits, else its rows as records: a narrow terminal loses no cell."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_CUT = "…"  # what rich puts at the end of a cell that it cuts


class Fitting:
    """Renders as `table` where the width allows, else one record per row: the first cell, then `heading: cell` lines.

    Args:
        table: of plain text cells; the `min_width` of its first column is what that column gets where it is tight.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first = self.table.columns[0]
        for width in (first.width, first.min_width):  # a fixed width leaves all that is to give to the last column
            first.width = width
            segments = list(console.render(self.table, options))
            longest = max(map(Segment.get_line_length, Segment.split_lines(segments)), default=0)
            if longest <= options.max_width and not any(_CUT in segment.text for segment in segments):
                yield from segments
                return
        if self.table.title:
            yield Text(_flat(self.table.title), style="bold")
        headings = [_flat(column.header) for column in self.table.columns]
        for row in zip(*(column.cells for column in self.table.columns), strict=True):
            cells = [_flat(cell) for cell in row]
            yield Text(cells[0])
            told = [
                f"{head}: {cell}" if head else cell for head, cell in zip(headings[1:], cells[1:], strict=True) if cell
            ]
            yield Text("    " + "; ".join(told))


def _flat(cell: object) -> str:
    """The lines of a cell as one."""
    return " ".join(str(cell).split())
