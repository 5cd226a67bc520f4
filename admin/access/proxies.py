"""Whose headers are believed, and from where a request comes.

What decides is the address of the connection; headers count only if that is a proxy of ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from werkzeug.datastructures import Headers

from admin.options import OptionsError

__all__ = ["LOOPBACK", "Proxies", "came_through_a_proxy", "only_value"]

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_MARKS: Final = ("X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Forwarded", "Via")


class Proxies:
    """The networks in which our proxies are (--trusted-proxy-cidr)."""

    def __init__(self, networks: Iterable[str]) -> None:
        """Raises OptionsError: one of them is no network."""
        self._networks: list[IPv4Network | IPv6Network] = []
        for text in networks:
            try:
                self._networks.append(ip_network(text, strict=False))
            except ValueError as error:
                reason = f"failed to parse --trusted-proxy-cidr ({text}) - {error}"
                raise OptionsError(reason) from None

    def __bool__(self) -> bool:
        return bool(self._networks)

    def include(self, host: str) -> bool:
        """Whether a connection from ``host`` is a proxy's; "" is a unix socket, as good as ::1."""
        address = _address(host or "::1")
        return address is not None and any(address in network for network in self._networks)

    def origin_of(self, host: str, headers: Headers) -> str:
        """Who asks: ``host``, or whom our proxies name as the last that is none of them."""
        named = [
            part.strip() for line in headers.getlist("X-Forwarded-For") for part in line.split(",")
        ][-16:]
        while named and self.include(host):
            before = named.pop()
            if _address(before) is None:
                break
            host = before
        return host


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def came_through_a_proxy(headers: Headers) -> bool:
    """Whether a request bears the marks that proxies leave."""
    return any(name in headers for name in _MARKS)


def only_value(headers: Headers, name: str) -> str:
    """The value of a header, "" if there is none or more than one.

    With two of them nobody knows which is the proxy's and which the client's own.
    """
    values = headers.getlist(name)
    return values[0].strip() if len(values) == 1 else ""
