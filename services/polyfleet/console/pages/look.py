"""How pages are made: templates, the two languages, and what stands on every page."""

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from importlib import resources
from typing import Any

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from polyfleet.console.access.sessions import Session, Sessions
from polyfleet.console.config import ConsoleConfig
from polyfleet.console.fleet.view import FleetView
from polyfleet.console.fleet.words import GATEWAY_GONE, SCHEDULER_GONE

LANGUAGES = {"en": "English", "zh": "中文"}
THEMES = ("auto", "light", "dark")
LANGUAGE_COOKIE, THEME_COOKIE = "polyfleet_language", "polyfleet_theme"
GIB = 2**30


def translations() -> dict[str, dict[str, str]]:
    """By language, what each English sentence of the pages is in it; English itself needs none."""
    text = resources.files("polyfleet.console").joinpath("texts/zh.json").read_text(encoding="utf-8")
    return {"en": {}, "zh": json.loads(text)}


def number(value: float | None, digits: int = 0) -> str:
    """With thin groups of thousands; a dash for what is not known."""
    return "–" if value is None else f"{value:,.{digits}f}".replace(",", "\u202f")


def percent(value: float | None) -> str:
    """A share of 1."""
    return "–" if value is None else f"{value * 100:.0f} %"


def gibibytes(value: float | None) -> str:
    """Bytes."""
    return "–" if value is None else f"{number(value / GIB, 1)} GiB"


def milliseconds(value: float | None) -> str:
    """Seconds, as ms below ten of them."""
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 10 else f"{value:.0f} s"


def clock_time(value: float) -> str:
    """A moment (Unix time) in UTC."""
    return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def language_of(request: Request) -> str:
    """What the visitor chose, or what their browser prefers."""
    chosen = request.cookies.get(LANGUAGE_COOKIE, "")
    if chosen in LANGUAGES:
        return chosen
    preferred = request.headers.get("accept-language", "").lower()
    return "zh" if preferred.startswith("zh") else "en"


class Look:
    """Makes pages and parts of pages."""

    def __init__(self, sessions: Sessions, view: FleetView, config: ConsoleConfig) -> None:
        loader = jinja2.PackageLoader("polyfleet.console", "templates")
        self._environment = jinja2.Environment(
            loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        filters = {"number": number, "percent": percent, "gib": gibibytes, "ms": milliseconds, "clock": clock_time}
        self._environment.filters |= filters
        self._texts = translations()
        for texts in self._texts.values():  # sentences of an address are known by the one that there is
            for sentence, address in ((SCHEDULER_GONE, config.fleet), (GATEWAY_GONE, config.gateway)):
                texts[sentence.format(address=address)] = _translated(texts, sentence, address=address)
        self._sessions, self._view = sessions, view
        self._environment.globals |= {"grafana_url": config.grafana_url, "runbooks_url": config.runbooks_url}

    def part(self, template: str, language: str, root: str, **facts: Any) -> str:
        """HTML of a template that looks at nobody in particular."""
        return self._environment.get_template(template).render(
            _=partial(_translated, self._texts[language]),
            _n=partial(_counted, self._texts[language]),
            language=language,
            root=root,
            view=self._view,
            **facts,
        )

    def text(self, request: Request, sentence: str) -> str:
        """In the language of who asks."""
        return _translated(self._texts[language_of(request)], sentence)

    def page(self, request: Request, template: str, status: int = 200, **facts: Any) -> HTMLResponse:
        """A whole page for who asks."""
        session: Session | None = request.scope.get("polyfleet.session")
        chosen = request.cookies.get(THEME_COOKIE, "auto")
        language = language_of(request)
        html = self.part(
            template,
            language,
            request.scope.get("root_path", ""),
            session=session,
            csrf=session.csrf if session else "",
            keyed=self._sessions.asks_for_keys,
            languages=LANGUAGES,
            theme=chosen if chosen in THEMES else "auto",
            themes=THEMES,
            path=request.url.path,
            **facts,
        )
        return HTMLResponse(html, status)


def _translated(texts: Mapping[str, str], sentence: str, **values: object) -> str:
    """The sentence in the language of `texts`, with `values` put in."""
    found = texts.get(sentence, sentence)
    return found.format(**values) if values else found


def _counted(texts: Mapping[str, str], one: str, many: str, count: int, **values: object) -> str:
    """The sentence for one, or for any other number of them."""
    return _translated(texts, one if count == 1 else many, count=count, **values)
