"""A hub on loopback, as huggingface_hub asks it: `serve_http(fake_hub({"owner/name": folder}))` is its HF_ENDPOINT."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

COMMIT = "c" * 40
GATED = "owner/gated"


def fake_hub(models: Mapping[str, Path]) -> Starlette:
    """Each model's folder, at one commit; and GATED, which nobody gets."""

    async def info(request: Request) -> Response:
        if request.path_params["name"] == GATED:
            return JSONResponse({"error": "Access is restricted"}, 403, {"x-error-code": "GatedRepo"})
        folder = models.get(request.path_params["name"])
        if folder is None:
            return JSONResponse({"error": "Repository not found"}, 404, {"x-error-code": "RepoNotFound"})
        files = [{"rfilename": path.name} for path in sorted(folder.iterdir())]
        return JSONResponse({"id": request.path_params["name"], "sha": COMMIT, "siblings": files})

    async def tree(request: Request) -> Response:
        folder = models[request.path_params["name"]]
        files = [(path.name, path.read_bytes()) for path in sorted(folder.iterdir())]
        told = [{"type": "file", "path": name, "oid": etag(data), "size": len(data)} for name, data in files]
        return JSONResponse(told)

    async def file(request: Request) -> Response:
        path = models[request.path_params["name"]] / request.path_params["file"]
        return FileResponse(path, headers={"etag": f'"{etag(path.read_bytes())}"', "x-repo-commit": COMMIT})

    return Starlette(
        routes=[
            Route("/api/models/{name:path}/revision/{revision}", info),
            Route("/api/models/{name:path}/tree/{revision}", tree),
            Route("/{name:path}/resolve/{revision}/{file}", file, methods=["GET", "HEAD"]),
        ]
    )


def etag(data: bytes) -> str:
    """What names this content."""
    return sha256(data).hexdigest()
