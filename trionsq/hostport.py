"""Addresses: ``host:port`` as options, log lines, URLs and pages have it, with IPv6 in brackets."""

from __future__ import annotations

from typing import Final

__all__ = ["bracket_host", "format_address", "parse_address", "split_address"]

_MAX_PORT: Final = 65_535


def format_address(host: str, port: int | str) -> str:
    """``127.0.0.1:4150``; ``[::1]:4150`` for an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bracket_host(host: str) -> str:
    """The host as URLs have it: an IPv6 address in brackets, any other host unchanged."""
    return f"[{host}]" if ":" in host else host


def split_address(address: str) -> tuple[str, int] | None:
    """Split the address of a listener: ``host:port``, ``[::1]:4150`` or ``:4150``.

    Returns:
        The host (empty: any) and the port, which may be out of range; None for the path of a unix
        socket and for anything else that has no port.
    """
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address or not port.isdecimal():
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_address(address: str) -> tuple[str, int]:
    """Split the address of a peer: ``host:port`` or ``[::1]:port``, both of them given.

    Raises:
        ValueError: the host or the port is missing, or the port is not 1 to 65535.
    """
    target = split_address(address)
    if target is None or address.startswith(":") or not 0 < target[1] <= _MAX_PORT:
        raise ValueError(f"{address!r} is not host:port")
    return target
