"""One HTTP request to an nsqlookupd, over the client's own transports: under trio and asyncio.

Spec: client, section 3 (discovery).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult

import anyio

from trionsq.client.handshake import dial_tcp
from trionsq.httpmessage import (
    DEFAULT_PORTS,
    MAX_BODY_BYTES,
    Answer,
    AnswerError,
    AnswerReader,
    GetConnectError,
    GetTimeoutError,
    Request,
    UrlError,
    encode_request,
    shown_url,
    split_url,
)
from trionsq.transports.runtime import checkpoint
from trionsq.transports.tls import SslEngine, reason_of, start_tls
from trionsq.transports.transport import Transport

__all__ = ["get"]


async def get(
    url: str,
    headers: Mapping[str, str],
    connect_timeout_s: float,
    request_timeout_s: float,
    *,
    ssl_context: ssl.SSLContext | None,
) -> Answer:
    """Send GET for ``url`` and return the response, whatever its status.

    Arguments and errors are those of `trionsq.httpget.get`. Cancelling closes the connection.
    """
    parts = split_url(url)
    request = encode_request("GET", parts, None, headers)
    with anyio.move_on_after(request_timeout_s if request_timeout_s > 0 else None):
        transport = await _connect(parts, connect_timeout_s, ssl_context)
        try:
            return await _exchange(transport, request)
        except OSError as error:
            raise AnswerError(f"the connection broke: {error}") from error
        finally:
            transport.close()
    raise GetTimeoutError(f"{shown_url(url)}: no response within {request_timeout_s:g} s")


async def _connect(
    parts: SplitResult, timeout_s: float, ssl_context: ssl.SSLContext | None
) -> Transport:
    host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
    where = f"{host}:{port}"
    with anyio.move_on_after(timeout_s if timeout_s > 0 else None):
        try:
            transport = await dial_tcp(host, port, "")
        except OSError as error:
            raise GetConnectError(f"{where}: {error}") from error
        except UnicodeError as error:  # of the lookup: a label of the name is empty or too long
            raise UrlError(f"{where!r} is not a host name: {error}") from error
        if parts.scheme == "http":
            return transport
        return await _secure(transport, host, where, ssl_context or ssl.create_default_context())
    raise GetTimeoutError(f"{where}: not connected within {timeout_s:g} s")


async def _secure(
    transport: Transport, host: str, where: str, context: ssl.SSLContext
) -> Transport:
    try:
        engine = SslEngine(context, server_side=False, server_hostname=host)
        return await start_tls(transport, engine)
    except BaseException as error:
        transport.close()
        if isinstance(error, OSError):
            raise GetConnectError(f"{where}: {reason_of(error)}") from error
        raise


async def _exchange(transport: Transport, request: Request) -> Answer:
    unsent = memoryview(request.data)
    while unsent := unsent[transport.send_nowait(unsent) :]:
        await transport.wait_writable()
    reader = AnswerReader(request.connection, MAX_BODY_BYTES)
    while (answer := reader.advance()) is None:
        if not reader.needs_data:
            await checkpoint()
            continue
        while (data := transport.receive_nowait(reader.read_bytes)) is None:
            await transport.wait_readable()
        reader.feed(data)
    return answer
