"""What nsqd says to nsqlookupd, and what it makes of the answers. Spec: nsqlookupd, section 1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trionsq.wire import lookup
from trionsq.wire.lookup import LookupAnswerError, LookupdInfo


def test_commands() -> None:
    """Each is a line; IDENTIFY is followed by its counted body."""
    assert lookup.register("t") == b"REGISTER t\n"
    assert lookup.register("t", "c") == b"REGISTER t c\n"
    assert lookup.unregister("t", "c#ephemeral") == b"UNREGISTER t c#ephemeral\n"
    assert lookup.identify({"tcp_port": 1}) == b'IDENTIFY\n\x00\x00\x00\x0e{"tcp_port":1}'


@pytest.mark.parametrize("size", [0, 2, 100])
def test_a_size_within_the_limit(size: int) -> None:
    """The limit is allowed."""
    assert lookup.answer_size(bytes([0, 0, 0, size]), 100) == size


@pytest.mark.parametrize("head", [b"\xff\xff\xff\xff", b"\0\0\0e", b"HTTP"])
def test_a_size_beyond_it(head: bytes) -> None:
    """Nothing of it is read."""
    with pytest.raises(LookupAnswerError, match="bytes"):
        lookup.answer_size(head, 100)


@pytest.mark.parametrize(
    ("host", "address"), [("h", "h:4161"), ("10.0.0.1", "10.0.0.1:4161"), ("::1", "[::1]:4161")]
)
def test_where_to_ask(host: str, address: str) -> None:
    """As URLs have it."""
    data = b'{"broadcast_address":"%b","http_port":4161,"more":[]}' % host.encode()
    info = lookup.parse_identify_answer(data)
    assert info == LookupdInfo(host, 4161)
    assert info.http_address == address


@given(st.binary(max_size=60) | st.from_regex(rb'\{"broadcast_address":"[^"]*","http_port":\d+\}'))
def test_any_answer_is_taken_or_refused(data: bytes) -> None:
    """Whatever comes, there is no other error, and no host with which a URL would go astray."""
    try:
        info = lookup.parse_identify_answer(data)
    except LookupAnswerError:
        return
    if info is not None:
        assert not set(info.host) & set(" /?#@\\\r\n\0[]")
        assert 0 < info.http_port < 65536
