"""Small pictures in plain SVG: scales, axes, lines, points. No script, no outside resource.

Colours and fonts come from the page's style sheet through classes, so that a picture follows light and
dark. Coordinates are in px of the view box; x grows to the right, y downwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]


def number(value: float) -> str:
    """A coordinate, short."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Scale:
    """From data [low, high] to pixels [start, end]; ``log`` for decades."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(max(value, self.low)), math.log(low), math.log(high)
        share = (value - low) / (high - low) if high > low else 0.0
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        return _decades(self.low, self.high) if self.log else _steps(self.low, self.high, about)


def _steps(low: float, high: float, about: int) -> list[float]:
    """Round values, 1, 2 or 5 times a power of ten apart."""
    raw = (high - low) / max(about, 1)
    if raw <= 0:
        return [low]
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """1, 2, 5 per decade; only the powers of ten where the range is long."""
    marks = (1, 2, 5) if math.log10(high / low) <= 2.5 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [m * 10.0**p for p in powers for m in marks]
    return [v for v in values if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]


def ceiling(value: float) -> float:
    """A round number at or a little above, for the end of an axis."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return float(
        next(m * power for m in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if m * power >= value * 0.999)
    )


@dataclass
class Chart:
    """One picture being drawn. The plot area lies within the margins."""

    title: str
    description: str
    width: float = 1080
    height: float = 300
    left: float = 58
    right: float = 18
    top: float = 26
    bottom: float = 40
    wide: bool = True
    """Drawn for the width of the page; on a small screen it is scrolled, not shrunk beyond reading."""
    _parts: list[str] = field(default_factory=list)

    @property
    def x0(self) -> float:
        return self.left

    @property
    def x1(self) -> float:
        return self.width - self.right

    @property
    def y0(self) -> float:
        """Bottom of the plot."""
        return self.height - self.bottom

    @property
    def y1(self) -> float:
        """Top of the plot."""
        return self.top

    def add(self, markup: str) -> None:
        self._parts.append(markup)

    def text(self, x: float, y: float, words: str, anchor: Anchor = "start", style: str = "") -> None:
        kind = f' class="{style}"' if style else ""
        self.add(f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"{kind}>{escape(words)}</text>')

    def line(self, a: Point, b: Point, style: str) -> None:
        ends = f'x1="{number(a[0])}" y1="{number(a[1])}" x2="{number(b[0])}" y2="{number(b[1])}"'
        self.add(f'<line {ends} class="{style}"/>')

    def path(self, points: Iterable[Point], style: str, closed: bool = False) -> None:
        joined = "L".join(f"{number(x)} {number(y)}" for x, y in points)
        if joined:
            self.add(f'<path d="M{joined}{"Z" if closed else ""}" class="{style}"/>')

    def box(self, a: Point, b: Point, style: str, radius: float = 0) -> None:
        """The rectangle between two corners."""
        x, y = min(a[0], b[0]), min(a[1], b[1])
        size = f'width="{number(abs(a[0] - b[0]))}" height="{number(abs(a[1] - b[1]))}"'
        round_ = f' rx="{number(radius)}"' if radius else ""
        self.add(f'<rect x="{number(x)}" y="{number(y)}" {size}{round_} class="{style}"/>')

    def dot(self, at: Point, style: str, radius: float = 2.8, tip: str = "") -> None:
        inside = f"<title>{escape(tip)}</title>" if tip else ""
        head = f'<circle cx="{number(at[0])}" cy="{number(at[1])}" r="{number(radius)}" class="{style}"'
        self.add(f"{head}>{inside}</circle>" if inside else f"{head}/>")

    def cross(self, at: Point, style: str, size: float = 3.6, tip: str = "") -> None:
        x, y = at
        strokes = (
            f"M{number(x - size)} {number(y - size)}L{number(x + size)} {number(y + size)}"
            f"M{number(x - size)} {number(y + size)}L{number(x + size)} {number(y - size)}"
        )
        self.add(f'<path d="{strokes}" class="{style}"><title>{escape(tip)}</title></path>')

    def x_axis(
        self, scale: Scale, labels: Sequence[tuple[float, str]], name: str, grid: bool = False
    ) -> None:
        for value, words in labels:
            x = scale(value)
            self.line((x, self.y1 if grid else self.y0), (x, self.y0 + (0 if grid else 4)), "grid")
            self.text(x, self.y0 + 16, words, "middle", "tick")
        self.line((self.x0, self.y0), (self.x1, self.y0), "axis")
        self.text((self.x0 + self.x1) / 2, self.height - 6, name, "middle", "label")

    def y_axis(self, scale: Scale, labels: Sequence[tuple[float, str]], name: str) -> None:
        for value, words in labels:
            y = scale(value)
            self.line((self.x0, y), (self.x1, y), "grid")
            self.text(self.x0 - 7, y + 4, words, "end", "tick")
        self.text(2, 12, name, "start", "label")

    def svg(self) -> str:
        """The whole picture; its title and description are read out by screen readers."""
        size = f"0 0 {number(self.width)} {number(self.height)}"
        name = f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>"
        kind = "chart wide" if self.wide else "chart"
        picture = f'<svg viewBox="{size}" role="img" class="{kind}">{name}{"".join(self._parts)}</svg>'
        return f'<div class="scroll">{picture}</div>' if self.wide else picture


def digits(value: float) -> str:
    """Three significant digits, and never an exponent for what people count."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A duration as people write it: 850 ms, 1.2 s, 3,600 s."""
    if value == 0:
        return "0"
    for unit, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if abs(value) < 999.5 * size:
            return f"{digits(value / size)} {unit}"
    return f"{digits(value)} s"


def count(value: float) -> str:
    """1234567 -> 1.23M; small numbers as they are."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{digits(value / size)}{letter}"
    return digits(value)
