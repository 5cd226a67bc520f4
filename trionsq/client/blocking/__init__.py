"""The client for programs without an event loop: scripts, Django, Flask, worker processes.

- `producer`, `consumer`: `Producer` and `Consumer`, by the names of the async ones
- `message`: the messages that handlers get
- `middleware`: what many handlers need around them
- `publishing`, `background`: the thread in which the async client runs

::

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("topic", b"body")

    consumer = Consumer("topic", "channel", nsqd_tcp_addresses=["127.0.0.1:4150"])
    consumer.run(handle, concurrency=10)  # until SIGTERM, SIGINT or consumer.stop()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trionsq.client.blocking.consumer import Consumer
    from trionsq.client.blocking.message import Message
    from trionsq.client.blocking.producer import Producer, QueueFullError

__all__ = ["Consumer", "Message", "Producer", "QueueFullError"]

# Each name is imported at its first use: a program that publishes needs no consumer.
_PLACES: Final = {
    "Consumer": "consumer",
    "Message": "message",
    "Producer": "producer",
    "QueueFullError": "producer",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return found


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
