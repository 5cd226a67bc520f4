"""Rows in bulk become the very commands that the client library writes one by one."""

import struct
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import RowsError
from pipelines.sink.commands import CommandBatch, command_batches
from pipelines.sink.options import CommandLimits
from tests.pipelines.sink.rows import batch
from trionsq.wire import commands

LIMITS = CommandLimits(max_messages=3, max_bytes=60, max_message_bytes=50)

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c#ephemeral"]),
        st.text(min_size=1, max_size=12),
        st.none() | st.integers(0, 2),
    ),
    max_size=30,
)
KINDS = st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])


def opened(command: bytes) -> tuple[str, int, list[bytes]]:
    """Topic, delay and bodies of an MPUB or DPUB, read plainly."""
    line, _, rest = command.partition(b"\n")
    name, topic, *delay = line.decode().split(" ")
    if name == "DPUB":
        return topic, int(delay[0]), [rest[4:]]
    nbytes, count = struct.unpack_from(">ii", rest)
    assert nbytes == len(rest) - 4
    bodies, at = [], 8
    for _ in range(count):
        (size,) = struct.unpack_from(">i", rest, at)
        bodies.append(rest[at + 4 : at + 4 + size])
        at += 4 + size
    assert at == len(rest)
    return topic, 0, bodies


def check_bounds(parcel: CommandBatch, limits: CommandLimits) -> None:
    """Neither too many nor too large, unless it is one; and as the client library writes it."""
    for command in parcel.commands:
        topic, delay_ms, bodies = opened(command)
        assert topic == parcel.topic
        if delay_ms:
            assert command == commands.publish_deferred(topic, delay_ms, bodies[0])
            continue
        assert parcel.rows == len(bodies) <= limits.max_messages
        assert command == commands.publish_many(topic, bodies)
        body_nbytes = 4 + sum(4 + len(body) for body in bodies)
        assert body_nbytes <= limits.max_bytes or len(bodies) == 1


@given(ROWS, KINDS, st.booleans(), st.integers(0, 4), st.integers(1, 7), st.integers(1, 80))
def test_all_rows_in_their_order_within_the_limits(
    rows: list[tuple[str, str, int | None]],
    kind: pa.DataType,
    one_topic: bool,
    skipped: int,
    messages: int,
    nbytes: int,
) -> None:
    """For each topic and delay the same bodies in the same order; also of a slice."""
    limits = CommandLimits(messages, nbytes, 100)
    made = pa.record_batch(
        {
            "body": pa.array([body.encode() for _, body, _ in rows], pa.binary()).cast(kind),
            "topic": pa.array([topic for topic, _, _ in rows], pa.string()),
            "defer_ms": pa.array([delay for *_, delay in rows], pa.int32()),
        }
    ).slice(skipped)
    wanted: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for topic, body, delay_ms in rows[skipped:]:
        wanted["only" if one_topic else topic, delay_ms or 0].append(body.encode())
    found: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for parcel in command_batches(made, "only" if one_topic else None, limits):
        check_bounds(parcel, limits)
        for command in parcel.commands:
            topic, delay_ms, bodies = opened(command)
            found[topic, delay_ms] += bodies
    assert found == wanted


def test_as_few_commands_as_the_limits_allow() -> None:
    """Ten rows, three a time; and by bytes: two of 20 fit into 60 with their sizes, three not."""
    counts = [parcel.rows for parcel in command_batches(batch([b"x"] * 10), "t", LIMITS)]
    assert counts == [3, 3, 3, 1]
    counts = [parcel.rows for parcel in command_batches(batch([b"x" * 20] * 5), "t", LIMITS)]
    assert counts == [2, 2, 1]


def test_deferred_rows_are_bounded_by_number_and_bytes() -> None:
    """Each is a command of its own, but they go together: 200, or a MPUB's bytes."""
    rows = batch([b"x" * 20] * 5, defer_ms=[1] * 5)
    assert [len(each.commands) for each in command_batches(rows, "t", LIMITS)] == [3, 2]
    rows = batch([b"x"] * 500, defer_ms=[1] * 500)
    assert [each.rows for each in command_batches(rows, "t", CommandLimits())] == [200, 200, 100]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (batch([b"a", None, None], topic=["t"] * 3), "body is null in 2 rows"),
        (batch([b"a", b""], topic=["t"] * 2), "body is empty"),
        (batch([b"a", b"x" * 51], topic=["t"] * 2), "51 bytes, maxMessageBytes is 50"),
        (batch([b"a"], topic=pa.array([None], pa.string())), "topic is null in 1 rows"),
        (batch([b"a", b"b"], topic=["ok", "not ok"]), "'not ok' is not a valid topic name"),
        (batch([b"a"], topic=["t\n"]), "'t.n' is not a valid topic name"),
        (batch([b"a"], topic=["t"], defer_ms=[-1]), "defer_ms must be 0 to [0-9]+, not -1"),
        (batch([b"a"], topic=["t"], defer_ms=[2**62]), "defer_ms must be 0 to"),
    ],
)
def test_rows_that_can_be_no_message_are_refused(rows: Any, said: str) -> None:
    """One line says what is wrong, and nothing of the batch is published."""
    parcels = command_batches(rows, None, LIMITS)
    with pytest.raises(RowsError, match=said) as caught:
        next(parcels)
    assert "\n" not in str(caught.value)
