"""The page at /: files without a build step, read once, served with what browsers must know.

The page is static and says nothing about anyone, so it needs no key; it asks its user for the key
and calls the API like any other client. The policy below lets it load its own files only.
"""

from __future__ import annotations

from hashlib import blake2b
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from server.errors import NotFoundError

INDEX = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_NOT_MODIFIED = 304


class Page:
    """Serves the files of server/api/static."""

    def __init__(self) -> None:
        self._files = {
            file.name: file.read_bytes()
            for file in files("server.api").joinpath("static").iterdir()
            if _suffix(file.name) in _MEDIA_TYPES
        }

    async def index(self, request: Request) -> Response:
        """The page itself."""
        return self._answer(INDEX, request)

    async def asset(self, request: Request) -> Response:
        """A file that the page is made of."""
        name = str(request.path_params["name"])
        if name not in self._files:
            raise NotFoundError(f"The page has no file '{name[:200]}'.")
        return self._answer(name, request)

    def _answer(self, name: str, request: Request) -> Response:
        content = self._files[name]
        tag = f'"{blake2b(content, digest_size=12).hexdigest()}"'
        headers = {**_HEADERS, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=_NOT_MODIFIED, headers=headers)
        return Response(content, media_type=_MEDIA_TYPES[_suffix(name)], headers=headers)


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
