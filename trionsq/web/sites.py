"""Which requests a browser sent on behalf of another site's page. They are refused.

Any page that somebody visits can make their browser send requests to addresses that only this
person reaches, such as those of their own machine. Two things give such requests away:

- Browsers say where a request comes from, in Sec-Fetch-Site or Origin. Pages can't change either.
- A page can have its own name resolve to a loopback address (DNS rebinding). Its requests then look
  like those of our own pages, but the Host header has the page's name, which is none of ours.

Programs send neither header, and name the host that they connect to, so they notice nothing.
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
"""Of a request, names in lower case."""

_ANY: Final = "*"
_SAFE: Final = frozenset({"GET", "HEAD"})
_MAX_SHOWN: Final = 200
# Our application keeps the Host header under the second name; see `trionsq.web.app`.
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
        refused_by: requests that were refused since the start, by what gave them away.
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
        """Make it.

        Args:
            own_names: of this machine.
            origins: whose pages may send requests (``https://host:port``); ``*``: all.
            hosts: further names that requests may have in their Host header; ``*``: any.
            checks_hosts: look at the Host header of requests on connections to loopback.
            checks_writes: look at where requests come from that are no GET. Otherwise the
                application does so by itself.
        """
        self.refused_by: Counter[str] = Counter(origin=0, host=0)
        self._origins = frozenset(_plain_origin(origin) for origin in origins)
        self._hosts = frozenset(_name_of(host) for host in (*own_names, *hosts) if host != _ANY)
        self._checks_writes = checks_writes
        self._checks_hosts = checks_hosts and _ANY not in hosts and _ANY not in self._origins

    def refusal(self, method: str, headers: Headers, *, to_loopback: bool) -> str | None:
        """Why a request is refused, and which option would allow it; None if it is not.

        ``to_loopback``: its connection was made to a loopback address.
        """
        said = _said(headers)
        if self._is_allowed(said.get("origin")):
            return None
        host = next((said[name] for name in _HOST if name in said), "")
        if to_loopback and not self.knows_host(host) and not _is_forwarded_for_a_program(said):
            self.refused_by["host"] += 1
            return _OTHER_HOST.format(_name_of(host)[:_MAX_SHOWN])
        is_looked_at = self._checks_writes or method in _SAFE
        if is_looked_at and _is_from_elsewhere(method, said, host):
            self.refused_by["origin"] += 1
            origin = said.get("origin", "null")
            return _FROM_ELSEWHERE if origin == "null" else _FROM_ORIGIN.format(origin[:_MAX_SHOWN])
        return None

    def knows_host(self, host: str) -> bool:
        """Whether a request for ``host``, from a Host header, may come to a loopback address.

        Nobody can have an IP address, a name without a dot, or one below localhost point at this
        machine from outside.
        """
        if not self._checks_hosts:
            return True
        name = _name_of(host)
        return "." not in name or name in self._hosts or _is_safe_name(name)

    def cors(self, headers: Headers) -> Mapping[str, str]:
        """The headers by which a browser lets an allowed page of another site see the answer."""
        if not self._origins:
            return {}
        said = _said(headers)
        origin = said.get("origin")
        if origin is None or not self._is_allowed(origin):
            return {"Vary": "Origin"}
        answer = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
        if "access-control-request-method" in said:
            answer["Access-Control-Allow-Methods"] = "GET, POST, PUT"
            answer["Access-Control-Max-Age"] = "600"
            if wanted := said.get("access-control-request-headers"):
                answer["Access-Control-Allow-Headers"] = wanted
            if "access-control-request-private-network" in said:
                answer["Access-Control-Allow-Private-Network"] = "true"
        return answer

    def _is_allowed(self, origin: str | None) -> bool:
        return bool(self._origins) and (
            _ANY in self._origins or (origin is not None and _plain_origin(origin) in self._origins)
        )


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, also as IPv6 writes IPv4 ones."""
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


def _said(headers: Headers) -> dict[str, str]:
    """The headers by name. What is there twice is joined, and so is like nothing that we know."""
    said: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1").strip()
        said[name] = f"{said[name]}, {value}" if name in said else value
    return said


def _is_from_elsewhere(method: str, said: Mapping[str, str], host: str) -> bool:
    site = said.get("sec-fetch-site")
    if site is not None:
        # A link that somebody follows from another site shows them what they could ask for anyway.
        follows_link = (
            method in _SAFE
            and said.get("sec-fetch-mode") == "navigate"
            and said.get("sec-fetch-dest") == "document"
        )
        return site not in ("same-origin", "none") and not follows_link
    origin = said.get("origin")
    if origin is None:
        return False
    scheme, _, named = _plain_origin(origin).partition("://")
    return not named or named != host.lower().removesuffix(_DEFAULT_PORT.get(scheme, "\0"))


def _is_forwarded_for_a_program(said: Mapping[str, str]) -> bool:
    """A proxy on this machine may keep the Host header that it was given.

    A page can forge the headers of a proxy, but a browser sends Accept-Language whatever its page
    does.
    """
    return "accept-language" not in said and any(name in said for name in _FORWARDED)


def _plain_origin(origin: str) -> str:
    """An origin in lower case, without the port that its scheme has anyway."""
    plain = origin.lower().rstrip("/")
    return plain.removesuffix(_DEFAULT_PORT.get(plain.partition(":")[0], "\0"))


def _name_of(host: str) -> str:
    """The name or address in a Host header: without the port, in lower case."""
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
