"""Charts as inline SVG: their colours come from the page's style sheet, so that one drawing suits light and dark.

Every chart has a title, axes with units and a text for those who cannot see it; all text is escaped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 28, 48
COLOURS = 8  # classes s0 … s7
_numbers = itertools.count()


class Axis:
    """Maps values from low … high to pixels. A logarithmic axis leaves out what is not above zero."""

    def __init__(self, values: Iterable[float], start: float, end: float, log: bool = False):
        self.log, self.start, self.end = log, start, end
        found = [self._of(v) for v in values if v is not None and math.isfinite(v) and (v > 0 or not log)] or [0.0, 1.0]
        low, high = min(found), max(found)
        room = 0.04 * (high - low) or 0.5
        self.low, self.high = low - room, high + room
        if not log and 0 <= low < 0.3 * high:
            self.low = 0.0

    def _of(self, value: float) -> float:
        return math.log10(value) if self.log else float(value)

    def __call__(self, value: float | None) -> float | None:
        """The pixel of a value; None for what has none."""
        if value is None or not math.isfinite(value) or (self.log and value <= 0):
            return None
        return self.start + (self._of(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """About five round values."""
        if self.log:
            first, last = math.ceil(self.low), math.floor(self.high)
            if last > first:
                return [10.0**n for n in range(first, last + 1, max(1, math.ceil((last - first) / 6)))]
            return [float(f"{10**(self.low + (self.high - self.low) * part):.1g}") for part in (0.1, 0.5, 0.9)]
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next(m for m in (1, 2, 5, 10) if (self.high - self.low) / (m * step) <= 6)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A tick or a figure in a few characters."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.6g}" if abs(value) >= 1000 else f"{value:.4g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def line_chart(title: str, xlabel: str, ylabel: str, x: Sequence[float], lines: dict, logx: bool = False, logy: bool = False) -> Markup:
    """Lines over x: name → values (None leaves a gap). A logarithmic x starts at 1, so positions are drawn as position + 1."""
    shown = [v + 1 for v in x] if logx and min(x, default=0) < 1 else list(x)
    across = Axis(shown, LEFT, WIDTH - RIGHT, logx)
    up = Axis((v for y in lines.values() for v in y), HEIGHT - BOTTOM, TOP, logy)
    body = []
    for n, (name, y) in enumerate(lines.items()):
        points, path = [(across(a), up(b)) for a, b in zip(shown, y)], ""
        pen = "M"
        for a, b in points:
            if a is None or b is None:
                pen = "M"
                continue
            path += f"{pen}{a:.1f} {b:.1f}"
            pen = "L"
        body.append(f'<path class="line s{n % COLOURS} d{n // COLOURS % 3}" d="{path}"/>')
    if logx and shown != list(x):
        xlabel += " + 1"
    ends = "; ".join(f"{name}: {_said(y[0])} to {_said(y[-1])}" for name, y in lines.items() if y)
    return _figure(title, xlabel, ylabel, across, up, body, list(lines), f"{len(lines)} lines. {ends}.")


def _said(value: float | None) -> str:
    return "nothing" if value is None else number(value)


def scatter(title: str, xlabel: str, ylabel: str, points: list[dict], logx: bool = False, logy: bool = False, joined: bool = False) -> Markup:
    """Points {x, y, label, group, ring}: groups have colours, a ring is not filled; joined: those that are no ring are joined in order of x."""
    groups = list(dict.fromkeys(p["group"] for p in points))
    across = Axis((p["x"] for p in points), LEFT, WIDTH - RIGHT, logx)
    up = Axis((p["y"] for p in points), HEIGHT - BOTTOM, TOP, logy)
    placed = [(across(p["x"]), up(p["y"]), p) for p in points]
    placed = [(a, b, p) for a, b, p in placed if a is not None and b is not None]
    body = []
    if joined:
        front = sorted((a, b) for a, b, p in placed if not p.get("ring"))
        body.append(f'<path class="front" d="M{"L".join(f"{a:.1f} {b:.1f}" for a, b in front)}"/>' if front else "")
    for a, b, p in placed:
        colour = f"s{groups.index(p['group']) % COLOURS}"
        body.append(f'<circle class="{"ring" if p.get("ring") else "dot"} {colour}" cx="{a:.1f}" cy="{b:.1f}" r="{3.5 if len(points) < 99 else 2.2}"><title>{escape(p["label"])}</title></circle>')
        if p.get("mark"):
            left = a > WIDTH - 90
            body.append(f'<text class="mark" x="{a - 7 if left else a + 7:.1f}" y="{b + 4:.1f}" text-anchor="{"end" if left else "start"}">{escape(p["mark"])}</text>')
    return _figure(title, xlabel, ylabel, across, up, body, groups, f"{len(placed)} points in {len(groups)} groups; the table has their values.")


def heat_map(title: str, xlabel: str, ylabel: str, unit: str, columns: Sequence[float], rows: Sequence[float], values: Sequence[Sequence[float]]) -> Markup:
    """Cells [rows, columns] with the strength of their colour by magnitude and its hue by sign."""
    largest = max((abs(v) for row in values for v in row), default=0) or 1.0
    across = Axis(columns, LEFT, WIDTH - RIGHT)
    across.low, across.high = min(columns) - 0.5, max(columns) + 0.5
    up = Axis(rows, TOP, HEIGHT - BOTTOM)
    up.low, up.high = min(rows) - 0.5, max(rows) + 0.5
    wide, high = (WIDTH - RIGHT - LEFT) / len(columns), (HEIGHT - BOTTOM - TOP) / len(rows)
    body = [
        f'<rect class="{"neg" if v < 0 else "pos"}" x="{LEFT + i * wide:.1f}" y="{TOP + j * high:.1f}" width="{wide + 0.3:.1f}" height="{high + 0.3:.1f}" fill-opacity="{abs(v) / largest:.2f}"/>'
        for j, row in enumerate(values)
        for i, v in enumerate(row)
        if abs(v) > largest / 100
    ]
    least, most = (number(f(v for row in values for v in row)) for f in (min, max))
    caption = [f"{least} to {most} {unit}: full colour is {number(largest)}, blue above zero, orange below"]
    return _figure(title, xlabel, ylabel, across, up, body, [], f"{len(rows)} by {len(columns)} cells from {least} to {most} {unit}.", caption)


def _figure(title, xlabel, ylabel, across: Axis, up: Axis, body: list[str], names: list[str], text: str, caption: Sequence[str] = ()) -> Markup:
    own = f"c{next(_numbers)}"
    grid = []
    for value in across.ticks():
        at = across(value)
        grid.append(f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/><text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number(value)}</text>')
    for value in up.ticks():
        at = up(value)
        grid.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/><text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(value)}</text>')
    legend = "".join(f'<li class="s{n % COLOURS} d{n // COLOURS % 3}">{escape(name)}</li>' for n, name in enumerate(names)) if len(names) > 1 else ""
    notes = "".join(f"<p>{escape(line)}</p>" for line in caption)
    return Markup(
        f'<figure><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{own}t {own}d"><title id="{own}t">{escape(title)}</title>'
        f'<desc id="{own}d">{escape(ylabel)} over {escape(xlabel)}. {escape(text)}</desc>{"".join(grid)}{"".join(body)}'
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(xlabel)}</text>'
        f'<text x="4" y="14">{escape(ylabel)}</text></svg>'
        f'{f"<ul class=legend>{legend}</ul>" if legend else ""}{notes}</figure>'
    )


def restart() -> None:
    """Number the charts from 0 again, so that the same page has the same bytes."""
    global _numbers
    _numbers = itertools.count()
