"""What trionsq.wire.commands writes is what the server's parser reads."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.reference import Command, Outcome, parse
from trionsq.wire import commands
from trionsq.wire.lines import CommandLimits

LIMITS = CommandLimits(
    max_req_timeout_ms=commands.MAX_DELAY_MS, max_defer_timeout_ms=commands.MAX_DELAY_MS
)
names = st.from_regex(r"[.a-zA-Z0-9_-]{1,54}(#ephemeral)?", fullmatch=True)
ids = st.binary(min_size=8, max_size=8).map(lambda raw: raw.hex().encode())
bodies = st.binary(min_size=1, max_size=60)
delays_ms = st.integers(0, commands.MAX_DELAY_MS)

Written = tuple[bytes, list[Command]]

publishes = st.one_of(
    st.builds(lambda t, b: (commands.publish(t, b), [("PUB", t, b)]), names, bodies),
    st.builds(
        lambda t, d, b: (commands.publish_deferred(t, d, b), [("DPUB", t, d, b)]),
        names,
        delays_ms,
        bodies,
    ),
    st.builds(
        lambda t, run: (commands.publish_many(t, run), [("MPUB line", t), ("MPUB", t, *run)]),
        names,
        st.lists(bodies, min_size=1, max_size=20),
    ),
    st.just((commands.nop(), [])),
)
consumes = st.one_of(
    st.builds(lambda count: (commands.ready(count), [("RDY", count)]), st.integers(0, 2500)),
    st.builds(lambda id_: (commands.finish(id_), [("FIN", id_)]), ids),
    st.builds(lambda id_, d: (commands.requeue(id_, d), [("REQ", id_, d)]), ids, delays_ms),
    st.builds(lambda id_: (commands.touch(id_), [("TOUCH", id_)]), ids),
)


@given(
    st.binary(min_size=1, max_size=20),
    st.lists(publishes, max_size=6),
    names,
    names,
    st.lists(st.one_of(publishes, consumes), max_size=12),
    st.lists(st.integers(1, 200), min_size=1, max_size=5),
)
@settings(deadline=None)
def test_the_server_reads_what_the_client_writes(
    secret: bytes,
    first: list[Written],
    topic: str,
    channel: str,
    then: list[Written],
    sizes: list[int],
) -> None:
    """A whole conversation, from magic to CLS, comes through with every value as it was given."""
    whole: list[Written] = [
        (commands.MAGIC_V2, []),
        (commands.identify({"client_id": "c"}), [("IDENTIFY", b'{"client_id":"c"}')]),
        (commands.auth(secret), [("AUTH", secret)]),
        *first,
        (commands.subscribe(topic, channel), [("SUB", topic, channel)]),
        *then,
        (commands.close(), [("CLS",)]),
    ]
    expected = [command for _, read in whole for command in read]
    assert parse(b"".join(data for data, _ in whole), sizes, LIMITS) == Outcome(expected)
