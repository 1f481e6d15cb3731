"""Who may see a page, and whether a form was sent from one of ours."""

import hmac
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from polyfleet.console.access.sessions import Session, Sessions
from polyfleet.console.pages.look import Look

COOKIE = "polyfleet_session"
MAX_BODY_BYTES = 4 * 2**20
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
Page = Callable[[Request], Awaitable[Response]]


class Guard:
    """Wraps pages. Without keys everybody who reaches it by a loopback name is an operator.

    `insecure` says that names beyond loopback are meant to reach it without keys.
    """

    def __init__(self, sessions: Sessions, look: Look, *, insecure: bool, secure_cookies: bool) -> None:
        self.sessions, self._look = sessions, look
        self._insecure, self._secure_cookies = insecure, secure_cookies

    def operators(self, page: Page) -> Page:
        """For those who may see and change the fleet."""
        return self._guarded(page, operators_only=True)

    def anybody(self, page: Page) -> Page:
        """For all who have signed in."""
        return self._guarded(page, operators_only=False)

    def set_cookie(self, response: Response, request: Request, value: str) -> None:
        """Let the browser keep a session's name; scripts can't read it, other sites can't send it."""
        path = request.scope.get("root_path") or "/"
        secure = self._secure_cookies or request.headers.get("x-forwarded-proto", "") == "https"
        response.set_cookie(COOKIE, value, path=path, httponly=True, samesite="strict", secure=secure)

    def _guarded(self, page: Page, *, operators_only: bool) -> Page:
        async def endpoint(request: Request) -> Response:
            session, fresh = self.sessions.find(request.cookies.get(COOKIE)), ""
            if session is None and not self.sessions.asks_for_keys:
                if not self._insecure and host_of(request) not in LOOPBACK_NAMES:
                    return self._look.page(request, "refused.html", 403, problem="It is open on this machine alone.")
                fresh = self.sessions.sign_in("")
                session = self.sessions.find(fresh)
            if session is None:
                return to_sign_in(request)
            request.scope["polyfleet.session"] = session
            if operators_only and not session.operator:
                return self._look.page(request, "refused.html", 403, problem="This page is for operators.")
            if request.method not in ("GET", "HEAD") and not await _is_ours(request, session):
                return self._look.page(request, "refused.html", 403, problem="This form is too old: load it again.")
            response = await page(request)
            if fresh:
                self.set_cookie(response, request, fresh)
            return response

        return endpoint


def session_of(request: Request) -> Session:
    """Whose request this is, behind a guard."""
    session: Session = request.scope["polyfleet.session"]
    return session


def host_of(request: Request) -> str:
    """The name that the browser knows this machine by, without a port."""
    return request.url.hostname or ""


def to_sign_in(request: Request) -> Response:
    """Where a visitor without a session goes; they come back behind it."""
    if request.headers.get("accept", "").startswith("text/event-stream") or request.method != "GET":
        return Response("Sign in first.", 401)
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in?next={quote(wanted)}", 303)


async def body_of(request: Request) -> bytes:
    """The body; what is larger than any of ours is cut off, and then reads as no form of ours."""
    cached: bytes | None = request.scope.get("polyfleet.body")
    if cached is None:
        cached = b""
        async for chunk in request.stream():
            cached += chunk
            if len(cached) > MAX_BODY_BYTES:
                cached = b""
                break
        request.scope["polyfleet.body"] = cached
    return cached


async def form_of(request: Request) -> dict[str, str]:
    """A form's fields, each once."""
    found = parse_qs((await body_of(request)).decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=200)
    return {name: values[-1] for name, values in found.items()}


async def _is_ours(request: Request, session: Session) -> bool:
    """Whether the session's token came with it: in a header from scripts, else in the form."""
    given = request.headers.get("x-csrf-token")
    if given is None:
        try:
            given = (await form_of(request)).get("csrf", "")
        except ValueError:
            return False
    return hmac.compare_digest(given.encode(), session.csrf.encode())
