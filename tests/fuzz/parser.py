"""Streams of commands straight into the parser: nothing but its own errors, the same when cut."""

from __future__ import annotations

from collections import Counter

from tests.fuzz.mutate import cut
from tests.fuzz.tcp_cases import tcp_case
from trionsq.wire.errors import ProtocolError
from trionsq.wire.events import (
    Event,
    Finish,
    Publish,
    PublishDeferred,
    PublishMany,
    PublishManyBegins,
)
from trionsq.wire.lines import CommandLimits, LineTooLong
from trionsq.wire.server import ServerParser

LIMITS = CommandLimits(max_msg_size=100_000, max_body_size=400_000)


class FuzzError(AssertionError):
    """A case went wrong; the text says which one."""


def _flat(event: Event) -> list[object]:
    """What an event says, whatever was put together in it."""
    if isinstance(event, Publish):
        return [("PUB", event.topic, body) for body in event.bodies.slice(0, event.bodies.count)]
    if isinstance(event, Finish):
        return [("FIN", id_) for id_ in event.ids]
    if isinstance(event, PublishMany):
        return [("MPUB", event.topic, *event.bodies.slice(0, event.bodies.count))]
    if isinstance(event, PublishDeferred):
        return [("DPUB", event.topic, event.delay_ms, *event.bodies.slice(0, event.bodies.count))]
    # Whether this one comes depends on the cut.
    return [] if isinstance(event, PublishManyBegins) else [event]


def read(pieces: list[bytes]) -> list[object]:
    """What a parser makes of the pieces, up to and with the error that ends it."""
    parser = ServerParser(LIMITS)
    said: list[object] = []
    received = 0
    try:
        for piece in pieces:
            parser.receive(piece)
            received += len(piece)
            events = 0
            while (event := parser.next_event()) is not None:
                said += _flat(event)
                events += 1
                assert events <= received, "events without end"
            assert parser.buffered <= min(received, 400_000 + 20_000)
        error = parser.end_of_input()
    except ProtocolError as refusal:
        error = refusal
    except LineTooLong:
        return [*said, "line too long"]
    return [*said, error and str(error)]


def fuzz_parser(count: int, seed: int) -> Counter[str]:
    """Run ``count`` cases; how they ended.

    Raises:
        FuzzError: with the seed and number of the case.
    """
    ends: Counter[str] = Counter()
    for number in range(count):
        random, data = tcp_case(seed, number)
        try:
            whole = read([data])
            # Every fourth: it doubles the time.
            if number % 4 == 0:
                assert read(cut(random, data)) == whole, "cut, it means something else"
        except Exception as error:
            raise FuzzError(f"seed {seed}, case {number}: {error!r}; {data[:2000]!r}") from error
        ends[str(whole[-1]).split()[0]] += 1
    return ends
