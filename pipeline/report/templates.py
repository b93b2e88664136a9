"""The Jinja environment of the reports on profiles, with the filters that they share."""

from typing import TYPE_CHECKING, Any

from pipeline.figures import written

if TYPE_CHECKING:
    from jinja2 import Environment


def cell(text: str) -> str:
    """Safe inside a table's cell."""
    return " ".join(str(text).split()).replace("|", "\\|")


def profile_templates(**filters: Any) -> "Environment":
    """Templates of this folder; blocks leave no empty lines.

    Args:
        filters: name -> function, beside `n` (a number as it is written), `cell` and `upper_first`.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pipeline", "report"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(n=written, cell=cell, upper_first=lambda text: text[:1].upper() + text[1:], **filters)
    return environment
