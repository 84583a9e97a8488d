"""The page at `/`: three files of the package. The page fetches its data itself, see feed and
http-api.md."""

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.routing import Route

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
    folder, routes = files("smartspec.server.live").joinpath("static"), []
    for path, (name, media_type) in FILES.items():
        content = folder.joinpath(name).read_bytes()
        response = Response(content, headers=HEADERS, media_type=media_type)
        routes.append(Route(path, response, methods=["GET"], include_in_schema=False))
    return APIRouter(routes=routes)
