"""Answers compressed as browsers ask for it. Spec: nsqadmin, section 1."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Final

import trio
from quart import Response, request

__all__ = ["compressed", "wanted_coding"]

# What is shorter is compressed at once, the rest beside the event loop.
_AT_ONCE_NBYTES: Final = 64 * 1024
_LEVEL: Final = 6


def _deflated(body: bytes) -> bytes:
    # Without zlib's header, as the original does it and browsers take it.
    compressor = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()


def _gzipped(body: bytes) -> bytes:
    return gzip.compress(body, _LEVEL, mtime=0)


_CODINGS: Final[dict[str, Callable[[bytes], bytes]]] = {"gzip": _gzipped, "deflate": _deflated}


def wanted_coding(header: str) -> str:
    """Of Accept-Encoding, the first that we have: gzip, deflate or ""; one with q=0 is none."""
    for item in header.split(","):
        name, _, parameters = item.partition(";")
        key, _, value = parameters.partition("=")
        refused = key.strip().lower() == "q" and not value.strip().strip("0.")
        if name.strip().lower() in _CODINGS and not refused:
            return name.strip().lower()
    return ""


async def compressed(response: Response) -> Response:
    """The answer in the coding that the request asks for; a stream is left as it is."""
    coding = wanted_coding(request.headers.get("Accept-Encoding", ""))
    is_stream = response.mimetype == "text/event-stream" or response.timeout is None
    if not coding or is_stream or "Content-Encoding" in response.headers:
        return response
    body = await response.get_data(as_text=False)
    compress = _CODINGS[coding]
    if len(body) <= _AT_ONCE_NBYTES:
        body = compress(body)
    else:
        body = await trio.to_thread.run_sync(compress, body)
    response.set_data(body)
    response.headers["Content-Encoding"] = coding
    response.vary.add("Accept-Encoding")
    return response
