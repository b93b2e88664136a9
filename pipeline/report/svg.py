"""Just enough SVG for bar and lane charts: text in, text out, the same input gives the same bytes.

A trial has a few hundred milliseconds in all; a chart made here takes about one, and needs no plotting library.
"""

from dataclasses import dataclass, field
from html import escape

# Colours that keep apart in greyscale and for most colour-blind readers.
BASELINE = "#9aa5b1"
OPTIMIZED = "#1f77b4"
COPY = "#e08214"
TARGET = "#2a9d5c"
OTHER = "#c9d2dc"
INK = "#1f2933"
FAINT = "#d8dee6"
FONT = "Helvetica, Arial, 'Noto Sans CJK SC', sans-serif"


@dataclass
class Svg:
    """A drawing of `width` x `height` pixels, origin at the upper left."""

    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, title: str = "") -> None:
        """A filled rectangle; `title` is shown when the mouse rests on it."""
        tip = f"<title>{escape(title)}</title>" if title else ""
        box = f'x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{height:.2f}"'
        self.parts.append(f'<rect {box} fill="{fill}">{tip}</rect>')

    def circle(self, x: float, y: float, radius: float, fill: str, title: str = "") -> None:
        """A half transparent circle, so that what it covers can be seen."""
        tip = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(
            f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius:.2f}" fill="{fill}" fill-opacity="0.6" '
            f'stroke="{fill}">{tip}</circle>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = INK, width: float = 1.0, dash: str = ""
    ) -> None:
        """A straight line."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{stroke}" '
            f'stroke-width="{width:g}"{dashes}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 12,
        anchor: str = "start",
        fill: str = INK,
        bold: bool = False,
    ) -> None:
        """Text; `y` is its baseline, `anchor` is start, middle or end."""
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}"{weight}>'
            f"{escape(words)}</text>"
        )

    def render(self) -> str:
        """The whole file."""
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{escape(FONT)}">'
        ground = f'<rect width="{self.width:g}" height="{self.height:g}" fill="#ffffff"/>'
        return "\n".join([head, ground, *self.parts, "</svg>", ""])


def ticks(top: float, count: int = 5) -> list[float]:
    """About `count` round numbers from 0 to `top`."""
    if top <= 0:
        return [0.0]
    raw = top / count
    power = 10.0 ** len(str(int(raw))) / 10 if raw >= 1 else 10.0 ** -_zeros(raw)
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    return [k * step for k in range(int(top / step + 1e-9) + 1)]


def _zeros(raw: float) -> int:
    zeros = 0
    while raw < 1:
        raw, zeros = raw * 10, zeros + 1
    return zeros
