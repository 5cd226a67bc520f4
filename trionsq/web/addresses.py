"""What an address says of who is at the other end."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

__all__ = ["is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, also as IPv6 writes IPv4 ones."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
