"""Requests that a browser sends on behalf of another site's page are refused.

Any page that a person visits can make the browser send requests to addresses that only this person
reaches, such as those of the person's own machine. Two things give such requests away:

- Browsers say in Sec-Fetch-Site or Origin where a request comes from. Pages cannot change either.
- A page can let its own name resolve to a loopback address (DNS rebinding). Its requests then look
  like those of our own pages, but their Host header has the name of the page.

Programs send neither header, and name the host that they connect to, so they are not affected.
"""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final

__all__ = ["Headers", "SiteGuard", "ends_at_loopback", "is_loopback"]

Headers = Iterable[tuple[bytes, bytes]]
"""The headers of a request, names in lower case."""

_ANY: Final = "*"
_SAFE: Final = frozenset({"GET", "HEAD"})
_MAX_SHOWN: Final = 200
# Our applications keep the Host header under the first name; see `trionsq.web.framework`.
_HOST: Final = (":authority", "host")
_PORT: Final = re.compile(r":[0-9]*\Z")
_DEFAULT_PORT: Final = {"http": ":80", "https": ":443"}
# What a proxy adds to what it forwards.
_FORWARDED: Final = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto")
_FROM_ELSEWHERE: Final = (
    "a web page of another site sent this request; --http-allow-origin allows an origin's pages"
)
_FROM_ORIGIN: Final = (
    "a web page of {0} sent this request; --http-allow-origin={0} allows all pages from there"
)
_OTHER_HOST: Final = (
    "the Host header says {0}, which is no name of this machine; --http-allow-host={0} allows it"
)


class SiteGuard:
    """Decides which requests are refused.

    Attributes:
        refused_by: number of requests refused since the start, by what gave them away.
    """

    def __init__(
        self,
        own_names: Iterable[str] = (),
        origins: Sequence[str] = (),
        hosts: Sequence[str] = (),
        *,
        checks_hosts: bool = True,
        checks_writes: bool = True,
    ) -> None:
        """Make a guard.

        Args:
            own_names: names of this machine.
            origins: origins whose pages may send requests (``https://host:port``); ``*``: all.
            hosts: further names allowed in the Host header; ``*``: any.
            checks_hosts: check the Host header of requests on connections to loopback.
            checks_writes: check the origin of requests other than GET. If not, the application
                does so by itself.
        """
        self.refused_by: Counter[str] = Counter(origin=0, host=0)
        self._origins = frozenset(_plain_origin(origin) for origin in origins)
        self._hosts = frozenset(_name_of(host) for host in (*own_names, *hosts) if host != _ANY)
        self._checks_writes = checks_writes
        self._checks_hosts = checks_hosts and _ANY not in hosts and _ANY not in self._origins

    def refusal(self, method: str, headers: Headers, *, to_loopback: bool) -> str | None:
        """Return why a request is refused, and which option allows it; None if it is not refused.

        ``to_loopback``: its connection was made to a loopback address.
        """
        fields = _by_name(headers)
        if self._is_allowed(fields.get("origin")):
            return None
        host = next((fields[name] for name in _HOST if name in fields), "")
        if to_loopback and not self.knows_host(host) and not _is_forwarded_for_a_program(fields):
            self.refused_by["host"] += 1
            return _OTHER_HOST.format(_name_of(host)[:_MAX_SHOWN])
        is_checked = self._checks_writes or method in _SAFE
        if is_checked and _is_from_elsewhere(method, fields, host):
            self.refused_by["origin"] += 1
            origin = fields.get("origin", "null")
            return _FROM_ELSEWHERE if origin == "null" else _FROM_ORIGIN.format(origin[:_MAX_SHOWN])
        return None

    def knows_host(self, host: str) -> bool:
        """Whether a Host header of ``host`` is allowed on connections to loopback.

        An IP address, a name without a dot and a name below localhost are always allowed: no other
        site can make them resolve to this machine.
        """
        if not self._checks_hosts:
            return True
        name = _name_of(host)
        return "." not in name or name in self._hosts or _is_safe_name(name)

    def cors(self, headers: Headers) -> Mapping[str, str]:
        """Return the headers that let an allowed page of another site read the response."""
        if not self._origins:
            return {}
        fields = _by_name(headers)
        origin = fields.get("origin")
        if origin is None or not self._is_allowed(origin):
            return {"Vary": "Origin"}
        response = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
        if "access-control-request-method" in fields:
            response["Access-Control-Allow-Methods"] = "GET, POST, PUT"
            response["Access-Control-Max-Age"] = "600"
            if names := fields.get("access-control-request-headers"):
                response["Access-Control-Allow-Headers"] = names
            if "access-control-request-private-network" in fields:
                response["Access-Control-Allow-Private-Network"] = "true"
        return response

    def _is_allowed(self, origin: str | None) -> bool:
        return bool(self._origins) and (
            _ANY in self._origins or (origin is not None and _plain_origin(origin) in self._origins)
        )


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a loopback address, also an IPv4 one in IPv6 notation."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def ends_at_loopback(accepted: socket.socket) -> bool:
    """Whether a connection was made to a loopback address."""
    if accepted.family == socket.AF_UNIX:
        return False
    try:
        return is_loopback(accepted.getsockname()[0])
    except OSError:
        return False


def _by_name(headers: Headers) -> dict[str, str]:
    """Return the headers by name. Repeated ones are joined, so that they match nothing we know."""
    fields: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1").strip()
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


def _is_from_elsewhere(method: str, fields: Mapping[str, str], host: str) -> bool:
    site = fields.get("sec-fetch-site")
    if site is not None:
        # Following a link on another site shows a person what the person could open anyway.
        follows_link = (
            method in _SAFE
            and fields.get("sec-fetch-mode") == "navigate"
            and fields.get("sec-fetch-dest") == "document"
        )
        return site not in ("same-origin", "none") and not follows_link
    origin = fields.get("origin")
    if origin is None:
        return False
    scheme, _, authority = _plain_origin(origin).partition("://")
    return not authority or authority != host.lower().removesuffix(_DEFAULT_PORT.get(scheme, "\0"))


def _is_forwarded_for_a_program(fields: Mapping[str, str]) -> bool:
    """Whether a proxy on this machine forwards a program's request, with its own Host header.

    A page can forge the headers of a proxy, but it cannot keep the browser from sending
    Accept-Language.
    """
    return "accept-language" not in fields and any(name in fields for name in _FORWARDED)


def _plain_origin(origin: str) -> str:
    """Return an origin in lower case, without the default port of its scheme."""
    plain = origin.lower().rstrip("/")
    return plain.removesuffix(_DEFAULT_PORT.get(plain.partition(":")[0], "\0"))


def _name_of(host: str) -> str:
    """Return the name or address in a Host header, without the port, in lower case."""
    name = host.lower() if host.endswith("]") else _PORT.sub("", host.lower())
    return name.strip("[]").removesuffix(".")


def _is_safe_name(name: str) -> bool:
    if name.endswith(".localhost"):
        return True
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, name.partition("%")[0])
        except (OSError, UnicodeError, ValueError):
            continue
        return True
    return False
