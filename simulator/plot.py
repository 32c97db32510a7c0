"""Draws who had how many devices over time, as an SVG image: one panel for each scheduler, all on
the same axis of time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Literal

from rankfold.simulator.result import Result, Span

By = Literal["job", "tier", "quota"]
GROUPS_MAX = 12  # areas of a panel; the smallest ones beyond that are one
COLUMNS = 720  # of a panel, each one unit wide; more changes than that are averaged in columns
HEIGHT = 180  # of a panel
LEFT, RIGHT, ABOVE, BELOW = 60, 240, 36, 44  # around it: ticks, legend, title, axis of time
NAME_MAX = 28  # characters of a name in the legend
UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
TICKS = 6  # about so many on an axis
TIERS = ("premium", "standard", "basic")  # from below
# Distinct for the colour-blind, too, as far as twelve colours can be.
COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7a5195",
    "#8c6d31", "#637939", "#ad494a", "#17becf",
)  # fmt: skip
REST, REST_COLOUR = "", "#bbbbbb"  # the group of those that have no area of their own


def draw(results: Mapping[str, Result], by: By | None = None) -> str:
    """An SVG document. results: scheduler → its result. by: what has an area of its own; None: the
    jobs if there are few, else the tiers."""
    spans = [span for result in results.values() for span in result.spans]
    if by is None:
        by = "job" if len({span.job for span in spans}) <= GROUPS_MAX else "tier"
    begin = min(span.start for span in spans)
    end = max(span.end for span in spans)
    end = max(end, math.nextafter(begin, math.inf))
    groups = _groups(spans, by)
    width, step = LEFT + COLUMNS + RIGHT, ABOVE + HEIGHT + BELOW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {step * len(results)}" '
        f'width="{width}" height="{step * len(results)}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (name, result) in enumerate(results.items()):
        panel = _Panel(result, begin, end, number * step + ABOVE)
        lines += panel.lines(name, by, groups)
    return "\n".join([*lines, "</svg>", ""])


def _group_of(span: Span, by: By) -> str:
    return {"job": span.job, "tier": span.tier, "quota": span.quota or "no quota"}[by]


def _groups(spans: Sequence[Span], by: By) -> dict[str, str]:
    """Group → its colour, from below. The smallest ones are in none: they are REST together."""
    held: dict[str, float] = {}  # in the order in which they first had devices
    for span in spans:
        group = _group_of(span, by)
        held[group] = held.get(group, 0.0) + span.devices * (span.end - span.start)
    if by == "tier":
        held = {tier: held[tier] for tier in TIERS if tier in held}
    kept = set(sorted(held, key=lambda group: -held[group])[:GROUPS_MAX])
    return dict(zip((group for group in held if group in kept), COLOURS, strict=False))


class _Panel:
    """The devices of one simulation over time. top: its upper edge in the image."""

    def __init__(self, result: Result, begin: float, end: float, top: int):
        self._spans, self._devices = result.spans, result.devices
        self._begin, self._end, self._top = begin, end, top

    def lines(self, name: str, by: By, groups: Mapping[str, str]) -> Iterator[str]:
        yield f'<text x="{LEFT}" y="{self._top - 12}" font-weight="bold">{_text(name)}</text>'
        yield (
            f'<rect x="{LEFT}" y="{self._top}" width="{COLUMNS}" height="{HEIGHT}" '
            'fill="#f4f4f4" stroke="#999999"/>'
        )
        yield from self._areas(by, groups)
        yield from self._axes()

    def _areas(self, by: By, groups: Mapping[str, str]) -> Iterator[str]:
        of: dict[str, list[Span]] = {group: [] for group in (*groups, REST)}
        rest: set[str] = set()
        for span in self._spans:
            group = _group_of(span, by)
            rest.update([group] if group not in groups else [])
            of[group if group in groups else REST].append(span)
        edges = self._edges()
        below = [0.0] * (len(edges) - 1)
        names = {**{group: group for group in groups}, REST: f"{len(rest)} others"}
        shown = [(group, spans) for group, spans in of.items() if spans]
        for place, (group, spans) in enumerate(shown):
            above = [low + each for low, each in zip(below, means(spans, edges), strict=True)]
            colour = groups.get(group, REST_COLOUR)
            seconds = math.fsum(span.devices * (span.end - span.start) for span in spans)
            title = f"{names[group]}: {seconds:.6g} device-seconds"
            path = self._path(edges, below, above)
            yield f'<path d="{path}" fill="{colour}"><title>{_text(title)}</title></path>'
            # The legend is in the order of the areas, the uppermost first.
            yield from self._legend(len(shown) - 1 - place, names[group], colour)
            below = above

    def _legend(self, place: int, name: str, colour: str) -> Iterator[str]:
        x, y = LEFT + COLUMNS + 12, self._top + 14 * place
        short = name if len(name) <= NAME_MAX else name[: NAME_MAX - 1] + "…"
        yield f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 16}" y="{y + 9}">{_text(short)}</text>'

    def _edges(self) -> list[float]:
        """The moments at which something changes; or equal columns, if these are fewer."""
        times = {time for span in self._spans for time in (span.start, span.end)}
        moments = sorted({self._begin, self._end, *times})
        if len(moments) <= COLUMNS + 1:
            return moments
        length = self._end - self._begin
        columns = [self._begin + length * at / COLUMNS for at in range(COLUMNS)]
        return [*columns, self._end]

    def _path(self, edges: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
        """Along the upper side to the right, and along the lower side back."""
        there = self._line(edges[1:], high)
        back = self._line(edges[-2::-1], low[::-1])
        return f"M{self._x(edges[0]):g},{self._y(low[0]):g}{there}{back}Z"

    def _line(self, ends: Sequence[float], heights: Sequence[float]) -> str:
        """Steps: each goes up or down to a height, then sideways to its end."""
        parts: list[str] = []
        last = ""
        for end, devices in zip(ends, heights, strict=True):
            if (height := f"V{self._y(devices):g}") == last:
                parts.pop()  # one line instead of two
            else:
                parts.append(height)
            parts.append(f"H{self._x(end):g}")
            last = height
        return "".join(parts)

    def _x(self, at: float) -> float:
        return round(LEFT + COLUMNS * (at - self._begin) / (self._end - self._begin), 2)

    def _y(self, devices: float) -> float:
        return round(self._top + HEIGHT * (1 - devices / self._devices), 2)

    def _axes(self) -> Iterator[str]:
        bottom = self._top + HEIGHT
        length = self._end - self._begin
        unit, seconds = next((each for each in UNITS if length >= 3 * each[1]), UNITS[-1])
        for tick in ticks(length / seconds):
            x = LEFT + COLUMNS * tick * seconds / length
            yield f'<path d="M{x:.2f},{bottom}v4" stroke="#999999"/>'
            yield f'<text x="{x:.2f}" y="{bottom + 17}" text-anchor="middle">{tick:g}</text>'
        middle = LEFT + COLUMNS / 2
        words = f"{unit} since the first job got devices"
        yield f'<text x="{middle}" y="{bottom + 32}" text-anchor="middle">{words}</text>'
        for tick in ticks(self._devices):
            if tick == int(tick):
                y = self._y(tick)
                yield f'<path d="M{LEFT},{y:.2f}h-4" stroke="#999999"/>'
                yield f'<text x="{LEFT - 8}" y="{y + 4:.2f}" text-anchor="end">{tick:g}</text>'
        yield (
            f'<text transform="translate(14 {self._top + HEIGHT / 2}) rotate(-90)" '
            'text-anchor="middle">devices</text>'
        )


def means(spans: Sequence[Span], edges: Sequence[float]) -> list[float]:
    """The mean number of devices between each two edges. edges: ascending, none after a change but
    before the first one."""
    steps = [(span.start, span.devices) for span in spans]
    steps = sorted([*steps, *((span.end, -span.devices) for span in spans)])
    found, at, devices = [], 0, 0
    for left, right in itertools.pairwise(edges):
        held, since = 0.0, left
        while at < len(steps) and steps[at][0] < right:
            time, change = steps[at]
            held += devices * (time - since)
            since, devices, at = time, devices + change, at + 1
        found.append((held + devices * (right - since)) / (right - left))
    return found


def ticks(most: float) -> list[float]:
    """About TICKS round numbers from 0 to `most`."""
    size = 10.0 ** math.floor(math.log10(most / TICKS))
    step = next(size * each for each in (1, 2, 5, 10) if size * each >= most / TICKS)
    return [step * at for at in range(math.floor(most / step + 1e-9) + 1)]


def _text(text: str) -> str:
    return escape(text, quote=False)
