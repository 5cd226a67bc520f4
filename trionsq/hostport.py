"""Addresses as options have them."""

from __future__ import annotations

__all__ = ["split_address"]


def split_address(address: str) -> tuple[str, int] | None:
    """Host and port of ``host:port`` (``[::1]:4150``, ``:4150``), None for a unix socket path."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address or not port.isdecimal():
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)
