"""A WSGI application that publishes by the blocking client: ``/pub?N,...`` answers 200 after OK,
with the id of the process, and ``/ping`` at once.

Its producer is made when the module is imported: with ``--preload`` in gunicorn's master, before it
forks. ``NSQD`` names the nsqd.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from trionsq.client import ClientError, ProtocolError
from trionsq.client.blocking import Producer

PRODUCER = Producer(os.environ["NSQD"])


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Publish the numbers of the query: the first by itself, all others together."""
    try:
        if environ["PATH_INFO"] == "/pub":
            first, *others = environ["QUERY_STRING"].split(",")
            PRODUCER.publish("web", first.encode())
            PRODUCER.publish_many("web", [number.encode() for number in others])
    except (ClientError, ProtocolError) as error:
        start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
        return [str(error).encode()]
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]
