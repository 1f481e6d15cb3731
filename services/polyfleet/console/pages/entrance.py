"""Signing in and out, the language and the light, and where `/` leads."""

from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from polyfleet.console.access.attempts import Attempts
from polyfleet.console.pages.guard import COOKIE, Guard, form_of, session_of
from polyfleet.console.pages.look import LANGUAGE_COOKIE, LANGUAGES, THEME_COOKIE, THEMES, Look
from polyfleet.gateway.errors import ApiError

YEAR_SECONDS = 365 * 86_400
CHOICES = {"language": (LANGUAGE_COOKIE, tuple(LANGUAGES)), "theme": (THEME_COOKIE, THEMES)}


class Entrance:
    """Routes of its own."""

    def __init__(self, guard: Guard, look: Look) -> None:
        self._guard, self._look, self._attempts = guard, look, Attempts()

    def routes(self) -> list[Route]:
        """Where it answers."""
        return [
            Route("/", self._guard.anybody(self._start)),
            Route("/sign-in", self._ask, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._guard.anybody(self._sign_out), methods=["POST"]),
            Route("/look", self._guard.anybody(self._choose), methods=["POST"]),
        ]

    async def _start(self, request: Request) -> Response:
        return _back(request, "/fleet" if session_of(request).operator else "/chat")

    async def _ask(self, request: Request) -> Response:
        return self._look.page(request, "sign_in.html", next=request.query_params.get("next", ""), problem="", wait=0)

    async def _sign_in(self, request: Request) -> Response:
        address = request.client.host if request.client else ""
        form = await form_of(request)
        wait = self._attempts.wait(address)
        problem = ""
        if not wait:
            try:
                cookie = self._guard.sessions.sign_in(form.get("key", "").strip())
            except ApiError as error:
                self._attempts.failed(address)
                problem = str(error)
            else:
                response = _back(request, local_path(form.get("next", "")))
                self._guard.set_cookie(response, request, cookie)
                return response
        facts: dict[str, Any] = {"next": form.get("next", ""), "problem": problem, "wait": wait}
        page = self._look.page(request, "sign_in.html", 429 if wait else 401, **facts)
        if wait:
            page.headers["retry-after"] = str(wait)
        return page

    async def _sign_out(self, request: Request) -> Response:
        self._guard.sessions.sign_out(request.cookies.get(COOKIE))
        response = _back(request, "/sign-in")
        response.delete_cookie(COOKIE, path=request.scope.get("root_path") or "/")
        return response

    async def _choose(self, request: Request) -> Response:
        form = await form_of(request)
        response = _back(request, local_path(form.get("next", "")))
        for name, (cookie, choices) in CHOICES.items():
            if form.get(name) in choices:
                response.set_cookie(cookie, form[name], max_age=YEAR_SECONDS, samesite="lax", httponly=True)
        return response


def local_path(wanted: str) -> str:
    """The path to go back to, if it is one of this site; else its beginning."""
    path = unquote(wanted)
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"


def _back(request: Request, path: str) -> RedirectResponse:
    root = request.scope.get("root_path", "")
    return RedirectResponse(path if root and path.startswith(f"{root}/") else f"{root}{path}", 303)
