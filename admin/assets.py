"""The static files of the package. Spec: nsqadmin, section 2 (/static, /fonts)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

import trio
from quart import Response, request

from admin import pages
from admin.options import NsqadminOptions
from trionsq.web.app import Endpoint
from trionsq.web.responses import plain

__all__ = ["STATIC_PATH", "endpoints"]

STATIC_PATH: Final = Path(pages.__file__).parent / "static"

# By suffix; the tables of the operating system differ.
_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ico": "image/x-icon",
    ".map": "application/json",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}


def endpoints(options: NsqadminOptions) -> Iterable[Endpoint]:
    """The static files of the package, or of --dev-static-dir."""
    files = _Files(Path(options.dev_static_dir or STATIC_PATH))
    return [
        ("GET", "/static/<path:asset>", files.static),
        ("GET", "/fonts/<path:asset>", files.font),
    ]


class _Files:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def static(self, asset: str) -> Response:
        """GET /static/:asset."""
        return await self._file(asset)

    async def font(self, asset: str) -> Response:
        """GET /fonts/:asset."""
        return await self._file(f"fonts/{asset}")

    async def _file(self, asset: str) -> Response:
        parts = PurePosixPath(asset).parts
        kind = _TYPES.get(PurePosixPath(asset).suffix)
        if kind is None or not parts or any(not _is_plain(part) for part in parts):
            return plain(404, "NOT_FOUND")
        try:
            content = await trio.to_thread.run_sync(self._folder.joinpath(*parts).read_bytes)
        except OSError:
            return plain(404, "NOT_FOUND")
        tag = f'"{sha256(content).hexdigest()[:32]}"'
        if request.headers.get("If-None-Match") == tag:
            response = Response(b"", 304)
            del response.headers["Content-Type"]
        else:
            response = Response(content, 200)
            response.headers["Content-Type"] = kind
        response.headers["ETag"] = tag
        # Browsers revalidate each time and get 304, so that a new version shows at once.
        response.headers["Cache-Control"] = "no-cache"
        return response


def _is_plain(part: str) -> bool:
    """Whether ``part`` is a plain file name: not hidden, no parent, no other root."""
    return not part.startswith(".") and os.sep not in part and "\0" not in part
