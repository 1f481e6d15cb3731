"""What a form changes at the scheduler: one call, and a page that says why where it is refused."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from polyfleet.console.fleet.link import FleetProblem
from polyfleet.console.fleet.view import FleetView
from polyfleet.console.pages.look import Look


async def act(
    look: Look, view: FleetView, request: Request, name: str, asked: object, answer: type, to: str
) -> Response:
    """Make the call of this name; then the browser goes `to` a page of ours, which has the change already."""
    try:
        await view.link.call(name, asked, answer)
    except FleetProblem as error:
        return look.page(request, "refused.html", 409, problem=str(error))
    await view.poll()
    return RedirectResponse(f"{request.scope.get('root_path', '')}{to}", 303)
