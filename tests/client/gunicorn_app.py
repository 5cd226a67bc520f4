"""A WSGI application that publishes by the blocking client. ``/pub?N,...`` answers 200 after OK,
``/begin?N,...`` before it, and ``/ping`` at once; each with the id of the process.

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
    """Publish the numbers of the query: the first by itself, all others together; or each in the
    background."""
    bodies = environ["QUERY_STRING"].encode().split(b",")
    try:
        if environ["PATH_INFO"] == "/pub":
            PRODUCER.publish("web", bodies[0])
            PRODUCER.publish_many("web", bodies[1:])
        elif environ["PATH_INFO"] == "/begin":
            for body in bodies:
                PRODUCER.begin_publish("web", body)
    except (ClientError, ProtocolError) as error:
        start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
        return [str(error).encode()]
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % os.getpid()]
