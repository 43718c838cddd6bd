"""Geometry and SVG parts that all plots share."""

from __future__ import annotations

from html import escape
from typing import NamedTuple


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
        sides = (frame.left - self.left, self.right - frame.right, frame.top - self.top, self.bottom - frame.bottom)
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
        f'<svg viewBox="0 0 {wide:g} {high:g}" role="img" aria-labelledby="{name}t {name}d"><title id="{name}t">{escape(title)}</title>'
        f'<desc id="{name}d">{escape(description)}</desc>{"".join(parts)}</svg>'
    )


def latency_axes(frame: Box, measure: str, baseline: float, hint: float) -> str:
    """The titles of latency below and of an accuracy measure beside a plot, and where it is better. baseline, hint: their y."""
    middle_x, middle_y = frame.centre
    return (
        f'<text class="axis" x="{middle_x:g}" y="{baseline:g}" text-anchor="middle">milliseconds per text, p50, log scale</text>'
        f'<text class="axis" transform="translate(16 {middle_y:g}) rotate(-90)" text-anchor="middle">{escape(measure)}</text>'
        f'<text class="hint" x="{frame.left:g}" y="{hint:g}">↖ better and faster</text>'
    )


def line(kind: str, box: Box) -> str:
    """A line of a style-sheet class from (left, top) to (right, bottom)."""
    return f'<line class="{kind}" x1="{box.left:.1f}" y1="{box.top:.1f}" x2="{box.right:.1f}" y2="{box.bottom:.1f}"/>'
