"""The page at `/`: three files of the package. The page fetches its data itself, see feed and
http-api.md."""

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors "
    "'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def page_routes() -> APIRouter:
    """A route for each file."""
    router = APIRouter()
    for path, (name, media_type) in FILES.items():
        content = files("smartspec.server.live").joinpath("static", name).read_bytes()
        response = Response(content, headers=HEADERS, media_type=media_type)
        router.add_api_route(
            path, _answer_with(response), methods=["GET", "HEAD"], include_in_schema=False
        )
    return router


def _answer_with(response: Response):
    async def answer() -> Response:
        return response

    return answer
