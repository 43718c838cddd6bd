"""What all plots share: scales and ticks, boxes, axes, and the <svg> around them."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import NamedTuple

Scale = Callable[[float], float]

MIN_DECADES = 0.5  # width of a log scale, so that noise does not look like distance
MIN_POINTS = 2  # height of a linear scale


class Box(NamedTuple):
    """A rectangle in SVG units; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def centre(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def overlap(self, other: Box, margin: float = 0) -> float:
        """The area both cover, each side of the intersection enlarged by `margin`."""
        wide = min(self.right, other.right) - max(self.left, other.left) + margin
        high = min(self.bottom, other.bottom) - max(self.top, other.top) + margin
        return max(0.0, wide) * max(0.0, high)

    def outside(self, frame: Box) -> float:
        """By how much it sticks out of a frame, summed over the four sides."""
        sides = (
            frame.left - self.left,
            self.right - frame.right,
            frame.top - self.top,
            self.bottom - frame.bottom,
        )
        return sum(max(0, side) for side in sides)


class Circle(NamedTuple):
    """A point of a plot, with its area."""

    x: float
    y: float
    radius: float

    @property
    def box(self) -> Box:
        return Box(self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius)


class Caption(NamedTuple):
    """What a screen reader reads of a drawing. id: unique on the page."""

    id: str
    title: str
    description: str


def drawing(wide: float, high: float, caption: Caption, parts: list[str]) -> str:
    """A whole <svg> for a page; its colours come from the page's style sheet."""
    name, title, description = caption
    return (
        f'<svg viewBox="0 0 {wide:g} {high:g}" role="img" aria-labelledby="{name}t {name}d"><title '
        f'id="{name}t">{escape(title)}</title>'
        f'<desc id="{name}d">{escape(description)}</desc>{"".join(parts)}</svg>'
    )


def latency_axes(frame: Box, measure: str, baseline: float, hint: float) -> str:
    """The titles of latency below and of an accuracy measure beside a plot, and where it is better. baseline,
    hint: their y."""
    middle_x, middle_y = frame.centre
    return (
        f'<text class="axis" x="{middle_x:g}" y="{baseline:g}" text-anchor="middle">milliseconds per text, '
        "p50, log scale</text>"
        f'<text class="axis" transform="translate(16 {middle_y:g}) rotate(-90)" '
        f'text-anchor="middle">{escape(measure)}</text>'
        f'<text class="hint" x="{frame.left:g}" y="{hint:g}">↖ better and faster</text>'
    )


def line(kind: str, box: Box) -> str:
    """A line of a style-sheet class from (left, top) to (right, bottom)."""
    return (
        f'<line class="{kind}" x1="{box.left:.1f}" y1="{box.top:.1f}" x2="{box.right:.1f}" '
        f'y2="{box.bottom:.1f}"/>'
    )


def log_ends(values: list[float]) -> tuple[float, float]:
    """The ends of a log scale, as values: of the range of positive values, or of MIN_DECADES around its
    middle."""
    low, high = math.log10(min(values)), math.log10(max(values))
    wider = max(0.0, MIN_DECADES - (high - low)) / 2
    return 10 ** (low - wider), 10 ** (high + wider)


def log_scale(values: list[float], left: float, right: float) -> Scale:
    """Map the range of positive values to left … right."""
    low, high = map(math.log10, log_ends(values))
    return lambda value: left + (math.log10(value) - low) / (high - low) * (right - left)


def log_ticks(values: list[float]) -> list[float]:
    """Round values from half the smallest to twice the largest; closer together where the range is below 12
    to 1."""
    fine = max(values) / min(values) < 12
    steps = [
        base * 10.0**power
        for power in range(-4, 6)
        for base in ((1, 1.5, 2, 3, 4, 5, 7) if fine else (1, 2, 5))
    ]
    low, high = min(values) / 1.9, max(values) * 1.9
    return [step for step in steps if low <= step <= high]


def linear_scale(values: list[float], bottom: float, top: float) -> tuple[Scale, list[float]]:
    """Map the range of values to bottom … top. Returns the scale and its ticks."""
    low, high = min(values), max(values)
    if high - low < MIN_POINTS:
        low, high = (low + high) / 2 - MIN_POINTS / 2, (low + high) / 2 + MIN_POINTS / 2
    raw = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
    first = math.floor((low - (high - low) * 0.2) / step) * step
    ticks = [round(first + step * i, 6) for i in range(20) if first + step * i <= high + (high - low) * 0.2]
    return lambda value: bottom - (value - low) / (high - low) * (bottom - top), ticks


def grid(x: Scale, x_ticks: list[float], y: Scale, y_ticks: list[float], frame: Box) -> str:
    """Grid lines and tick labels within a frame, and its base line."""
    left, top, right, bottom = frame
    lines = []
    for tick in x_ticks:
        if left <= x(tick) <= right:
            lines.append(
                f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{bottom}"/>'
            )
            lines.append(
                f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>'
            )
    for tick in y_ticks:
        if top <= y(tick) <= bottom:
            lines.append(
                f'<line class="grid" x1="{left}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            )
            lines.append(
                f'<text class="tick" x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
            )
    return "".join(lines) + f'<line class="base" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
