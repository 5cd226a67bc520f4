"""Addresses: written with IPv6 hosts in brackets, and read back."""

from __future__ import annotations

import pytest

from trionsq.hostport import bracket_host, format_address, parse_address


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("127.0.0.1", 4150, "127.0.0.1:4150"),
        ("nsqd-1.example", 4150, "nsqd-1.example:4150"),
        ("::1", 4150, "[::1]:4150"),
        ("fe80::1%eth0", 65_535, "[fe80::1%eth0]:65535"),
    ],
)
def test_what_is_written_is_read_back(host: str, port: int, address: str) -> None:
    """An IPv6 host stands in brackets, so the last colon always comes before the port."""
    assert format_address(host, port) == address
    assert parse_address(address) == (host, port)


def test_the_host_of_a_url() -> None:
    """Only IPv6 hosts need brackets in a URL."""
    assert bracket_host("::1") == "[::1]"
    assert bracket_host("example.com") == "example.com"


@pytest.mark.parametrize(
    "address",
    ["", "host", ":4150", "host:", "host:port", "host:0", "host:65536", "host:-1", "/run/nsqd:1"],
)
def test_a_peer_needs_a_host_and_a_port(address: str) -> None:
    """No address of a peer is accepted that could not be dialled."""
    with pytest.raises(ValueError, match="is not host:port"):
        parse_address(address)
