"""A picture of what policies made of a trace, as SVG: goodput, and the spread of times to the first token."""

from collections.abc import Iterable, Mapping, Sequence
from math import log10
from typing import Any
from xml.sax.saxutils import escape

from polyfleet.simulator.figures import first_seconds
from polyfleet.simulator.simulate import Outcome

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")  # told apart by everybody
WIDTH, HEIGHT, LEFT, GAP = 960, 320, 140, 120
PANEL = (WIDTH - LEFT - GAP - 40) // 2
TOP, BOTTOM = 30, HEIGHT - 50
DECADES = (-2, -1, 0, 1, 2)  # of seconds, from the left to the right of the curves
MAX_POINTS = 300  # of a curve


def picture(outcomes: Mapping[str, Outcome], found: Mapping[str, Mapping[str, Any]]) -> str:
    """The document. Left a bar for each policy: requests a second that kept the objectives; right its curve: which
    share of requests had their first token within so many seconds."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_bars({name: found[name]["goodput_per_second"] for name in outcomes}),
        *_axes(),
    ]
    for number, outcome in enumerate(outcomes.values()):
        parts += _curve(sorted(map(first_seconds, outcome.jobs)), COLOURS[number % len(COLOURS)])
    return "\n".join((*parts, "</svg>", ""))


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _bars(values: Mapping[str, float]) -> Iterable[str]:
    most, height = max(values.values(), default=0.0) or 1.0, (BOTTOM - TOP) / max(1, len(values))
    for number, (name, value) in enumerate(values.items()):
        y, width = TOP + number * height, PANEL * value / most
        colour = COLOURS[number % len(COLOURS)]
        yield f'<rect x="{LEFT}" y="{y:.1f}" width="{width:.1f}" height="{height * 0.7:.1f}" fill="{colour}"/>'
        yield _text(LEFT - 8, y + height * 0.45, name, "end")
        yield _text(LEFT + width + 4, y + height * 0.45, f"{value:.1f}", "start")
    yield _text(LEFT + PANEL / 2, HEIGHT - 10, "requests a second within the objectives")


def _x(seconds: float) -> float:
    """Where a time stands on the curves' axis."""
    low, high = DECADES[0], DECADES[-1]
    return WIDTH - 40 - PANEL + PANEL * (min(max(log10(max(seconds, 1e-9)), low), high) - low) / (high - low)


def _y(share: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * share


def _axes() -> Iterable[str]:
    for share in (0.0, 0.5, 1.0):
        yield f'<path d="M{_x(0):.1f} {_y(share):.1f}H{WIDTH - 40}" stroke="#ccc"/>'
        yield _text(_x(0) - 8, _y(share) + 4, f"{share:.0%}", "end")
    for decade in DECADES:
        yield _text(_x(10.0**decade), BOTTOM + 18, f"{10.0**decade:g}")
    yield _text(WIDTH - 40 - PANEL / 2, HEIGHT - 10, "seconds to the first token, share of requests within")


def _curve(seconds: Sequence[float], colour: str) -> Iterable[str]:
    step = max(1, len(seconds) // MAX_POINTS)
    points = [(seconds[n], (n + 1) / len(seconds)) for n in range(0, len(seconds), step)]
    if points:
        path = " ".join(f"{_x(each):.1f},{_y(share):.1f}" for each, share in (*points, (seconds[-1], 1.0)))
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
