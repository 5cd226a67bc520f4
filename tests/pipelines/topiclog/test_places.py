"""Offsets, positions and shares of ``mode=log``: no nsqd, no Spark."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import OptionsError
from pipelines.source.datasource import NsqDataSource
from pipelines.topiclog.options import TopicLogOptions
from pipelines.topiclog.places import (
    LogName,
    Place,
    cut_range,
    offset_of,
    parse_positions,
    places_of,
    share_messages,
)

LOGS = [LogName("t", f"h:{number}") for number in range(5)]


def test_an_offset_is_the_same_text_for_the_same_places() -> None:
    """Spark compares texts: equal places begin no microbatch."""
    places = {name: Place(7, "1.7") for name in LOGS}
    backwards = dict(reversed(places.items()))
    assert json.dumps(offset_of(places)) == json.dumps(offset_of(backwards))
    assert places_of(json.loads(json.dumps(offset_of(places)))) == places
    assert offset_of({})["positions"] == {}


def test_positions_are_kafkas_and_times() -> None:
    """-2 and -1, words and times; what is not named has the default."""
    text = '{"t": {"a:1": 5, "b:1": -2, "c:1": -1, "d:1": "latest", "e:1": "2026-01-31T12:00:00Z"}}'
    positions = parse_positions("beginning", text)
    of = [positions.of(LogName("t", f"{letter}:1")) for letter in "abcdef"]
    assert of == ["5", "beginning", "end", "end", "2026-01-31T12:00:00.000000Z", "beginning"]
    assert parse_positions("beginning", "Latest").of(LOGS[0]) == "end"
    for wrong in ('{"t": 5}', '{"t": {"a": -3}}', '{"t": {"a": true}}', "soon", "[1]", "{"):
        with pytest.raises(ValueError, match="neither earliest, latest nor JSON"):
            parse_positions("beginning", wrong)


@given(st.lists(st.integers(1, 10**6), max_size=5), st.integers(0, 10**6))
def test_shares_add_up_and_none_is_more_than_there_is(backlogs: list[int], count: int) -> None:
    """A limit is used up, whatever the sizes of the logs."""
    wanted = dict(zip(LOGS, backlogs, strict=False))
    shares = share_messages(wanted, count)
    assert sum(shares.values()) == min(count, sum(backlogs))
    assert all(0 <= shares[name] <= wanted[name] for name in wanted)


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 50))
def test_a_range_is_cut_evenly(first: int, count: int, parts: int) -> None:
    """No part is empty, and none has over one message more than another."""
    bounds = cut_range(first, first + count, parts)
    sizes = [high - low for low, high in pairwise(bounds)]
    assert (bounds[0], bounds[-1]) == (first, first + count)
    assert len(sizes) == min(parts, count)
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


NEEDED = {"mode": "log", "topic": "t", "nsqd.http.addresses": "127.0.0.1:4151"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"nsqd.http.addresses": "localhost"}, "nsqd.http.addresses"),
        ({"nsqd.http.addresses": "http://h:1/path"}, "has a path"),
        ({"topic": "t.*"}, "needs lookupd.http.addresses"),
        ({"channel": "c#ephemeral"}, "ephemeral"),
        ({"channel": "a b"}, "not a valid name"),
        ({"startingTimestamp": "yesterday"}, "neither a time"),
        ({"walPath": "/w"}, "there is no option 'walpath'"),
        ({"minMessagesPerTrigger": "5", "maxMessagesPerTrigger": "4"}, "is above"),
        ({"mode": "staged"}, "neither receiver nor log"),
    ],
)
def test_what_is_wrong_is_told_at_load(options: dict[str, str], problem: str) -> None:
    """Each error names the option, or what to do."""
    with pytest.raises(OptionsError, match=problem):
        NsqDataSource(NEEDED | options).schema()


def test_addresses_are_needed_and_a_checkpoint_names_the_channel() -> None:
    """Without nsqd and nsqlookupd nothing can be read; URLs are taken."""
    with pytest.raises(OptionsError, match="is needed"):
        TopicLogOptions.read_stream({"mode": "log", "topic": "t"})
    url = {"nsqd.http.addresses": "https://h:4152/"}
    assert TopicLogOptions.read_stream(NEEDED | url).nsqds == ("https://h:4152",)
    NsqDataSource(NEEDED | {"checkpointLocation": "s3a://b/c"}).schema()
