"""A picture of what policies made of a trace, as SVG: goodput, and the spread of both latencies."""

from collections.abc import Iterable, Mapping, Sequence
from math import log10
from typing import Any
from xml.sax.saxutils import escape

from polyfleet.simulator.figures import first_seconds, token_seconds
from polyfleet.simulator.simulate import Outcome

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")  # told apart by everybody
LEFT, GAP, PANEL = 140, 90, 270  # for names, between panels, of one panel
WIDTH, HEIGHT = LEFT + 3 * PANEL + 2 * GAP + 30, 320
TOP, BOTTOM = 30, HEIGHT - 50
MAX_POINTS = 300  # of a curve
CURVES = (  # what, its values of a job, decades of seconds from the left to the right
    ("seconds to the first token, share of requests within", first_seconds, (-2, -1, 0, 1, 2)),
    ("seconds from token to token, share of requests within", token_seconds, (-3, -2, -1, 0)),
)


def picture(outcomes: Mapping[str, Outcome], found: Mapping[str, Mapping[str, Any]]) -> str:
    """The document. Left a bar for each policy: requests a second that kept the objectives; then its curves: which
    share of requests had their first token, and each next one, within so many seconds."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_bars({name: found[name]["goodput_per_second"] for name in outcomes}),
    ]
    for place, (title, value, decades) in enumerate(CURVES, 1):
        axis = Axis(LEFT + place * (PANEL + GAP), decades)
        parts += axis.drawn(title)
        for number, outcome in enumerate(outcomes.values()):
            parts += axis.curve(sorted(map(value, outcome.jobs)), COLOURS[number % len(COLOURS)])
    return "\n".join((*parts, "</svg>", ""))


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _bars(values: Mapping[str, float]) -> Iterable[str]:
    most, height = max(values.values(), default=0.0) or 1.0, (BOTTOM - TOP) / max(1, len(values))
    for number, (name, value) in enumerate(values.items()):
        y, width = TOP + number * height, (PANEL - 30) * value / most
        colour = COLOURS[number % len(COLOURS)]
        yield f'<rect x="{LEFT}" y="{y:.1f}" width="{width:.1f}" height="{height * 0.7:.1f}" fill="{colour}"/>'
        yield _text(LEFT - 8, y + height * 0.45, name, "end")
        yield _text(LEFT + width + 4, y + height * 0.45, f"{value:.1f}", "start")
    yield _text(LEFT + PANEL / 2, HEIGHT - 10, "requests a second within the objectives")


class Axis:
    """A panel whose left edge is at `x`: times to the right, shares upwards."""

    def __init__(self, x: float, decades: Sequence[int]) -> None:
        self._x, self._decades = x, decades

    def drawn(self, title: str) -> Iterable[str]:
        """Its lines and words."""
        for share in (0.0, 0.5, 1.0):
            yield f'<path d="M{self._x:.1f} {self._up(share):.1f}h{PANEL}" stroke="#ccc"/>'
            yield _text(self._x - 8, self._up(share) + 4, f"{share:.0%}", "end")
        for decade in self._decades:
            yield _text(self._right(10.0**decade), BOTTOM + 18, f"{10.0**decade:g}")
        yield _text(self._x + PANEL / 2, HEIGHT - 10, title)

    def curve(self, seconds: Sequence[float], colour: str) -> Iterable[str]:
        """Of values in order; nothing of none."""
        step = max(1, len(seconds) // MAX_POINTS)
        points = [(seconds[n], (n + 1) / len(seconds)) for n in range(0, len(seconds), step)]
        if points:
            found = (f"{self._right(each):.1f},{self._up(share):.1f}" for each, share in (*points, (seconds[-1], 1.0)))
            yield f'<polyline points="{" ".join(found)}" fill="none" stroke="{colour}" stroke-width="2"/>'

    def _right(self, seconds: float) -> float:
        low, high = self._decades[0], self._decades[-1]
        return self._x + PANEL * (min(max(log10(max(seconds, 1e-9)), low), high) - low) / (high - low)

    def _up(self, share: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * share
