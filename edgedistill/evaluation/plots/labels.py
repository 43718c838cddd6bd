"""Labels of points, placed where they hide least."""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

from edgedistill.evaluation.plots.svg import Box, Circle

DISTANCES = (4.0, 12.0, 22.0, 36.0, 54.0, 76.0, 100.0)  # from the edge of the point
LEADER_FROM = 12.0  # distance from which a line connects label and point


class Label(NamedTuple):
    """Text next to a point: `name` in bold and `detail` on the first line, `note` below. `note` may be
    empty."""

    point: Circle
    name: str
    detail: str
    note: str = ""

    @property
    def size(self) -> tuple[float, float]:
        """Estimated width and height."""
        first = 7.1 * len(f"{self.name} {self.detail}".strip())
        return (max(first, 6.2 * len(self.note)) + 4, 28.0) if self.note else (first + 4, 15.0)


class Surroundings(NamedTuple):
    """What labels should avoid: leaving the frame, covering what is drawn, covering points."""

    frame: Box
    drawn: list[Box]
    points: list[Circle]


def place(labels: list[Label], surroundings: Surroundings) -> list[Box]:
    """A box for each label, in their order; each avoids those before it."""
    frame, drawn, points = surroundings
    boxes: list[Box] = []
    for label in labels:
        boxes.append(_cheapest(label, Surroundings(frame, [*drawn, *boxes], points)))
    return boxes


def _cheapest(label: Label, surroundings: Surroundings) -> Box:
    """The box with the least cost of many distances and angles around the point."""
    (px, py, radius), (wide, high) = label.point, label.size
    frame, drawn, points = surroundings
    best, least = Box(px, py, px + wide, py + high), math.inf
    for distance in DISTANCES:
        for angle in range(0, 360, 15):
            cx, cy = math.cos(math.radians(angle)), -math.sin(math.radians(angle))
            mx = px + cx * (radius + distance) + wide / 2 * max(-1.0, min(1.0, 1.7 * cx))
            my = py + cy * (radius + distance) + high / 2 * max(-1.0, min(1.0, 1.7 * cy))
            box = Box(mx - wide / 2, my - high / 2, mx + wide / 2, my + high / 2)
            hidden = (
                sum(box.overlap(other, 3) for other in drawn) * 4
                + sum(box.overlap(point.box, 1) for point in points) * 2
            )
            cost = (
                box.outside(frame) * 400
                + hidden
                + distance * 1.5
                + (0 if abs(cx) > 0.9 else 3)
                + (2 if cx < 0 else 0)
            )
            if cost < least:
                best, least = box, cost
    return best


def draw(label: Label, box: Box) -> str:
    """The label's text in its box, with a leader line where it is away from its point."""
    px, py, radius = label.point
    parts = []
    gap = math.hypot(max(box.left - px, 0, px - box.right), max(box.top - py, 0, py - box.bottom)) - radius
    if gap > LEADER_FROM:
        ex, ey = min(max(px, box.left), box.right), min(max(py, box.top), box.bottom)
        reach = radius / math.hypot(ex - px, ey - py)
        start = f'x1="{px + (ex - px) * reach:.1f}" y1="{py + (ey - py) * reach:.1f}"'
        parts.append(f'<line class="leader" {start} x2="{ex:.1f}" y2="{ey:.1f}"/>')
    name = (
        f'<tspan class="name">{escape(label.name)}{" " if label.name and label.detail else ""}</tspan>'
        if label.name
        else ""
    )
    anchor = f'x="{box.right - 2:.1f}" text-anchor="end"' if box.right < px else f'x="{box.left + 2:.1f}"'
    parts.append(f'<text class="label" {anchor} y="{box.top + 11.5:.1f}">{name}{escape(label.detail)}</text>')
    if label.note:
        parts.append(f'<text class="note" {anchor} y="{box.top + 25:.1f}">{escape(label.note)}</text>')
    return "".join(parts)
