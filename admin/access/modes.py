"""Where users come from (--access), and which proxies are trusted (--trusted-proxy-cidr).

The mode is decided once, at the start. Headers count only if the connection comes from a trusted
proxy.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from werkzeug.datastructures import Headers

from admin.options import NsqadminOptions, OptionsError
from trionsq.web.sites import is_loopback

__all__ = [
    "LOOPBACK",
    "Mode",
    "Proxies",
    "came_through_a_proxy",
    "decide",
    "explain",
    "is_local_host",
    "only_value",
]


class Mode(enum.Enum):
    """A way to identify users."""

    NONE = "none"
    LOCAL = "local"
    ACL = "acl"
    PASSWORD = "password"
    PROXY = "proxy"


_EXPLAINED: Final = {
    Mode.NONE: "everyone who can connect may do everything (--access=none)",
    Mode.LOCAL: "everyone on this machine may do everything; other machines can't connect, and "
    "requests through a proxy are read-only",
    Mode.ACL: "everyone may read; users of --admin-user, named by the header {header}, may make "
    "changes{trust}",
    Mode.PASSWORD: "users sign in with a password ({users}); each has a role",
    Mode.PROXY: "a proxy names the user in the header {header}{roles}; requests from "
    "addresses other than {proxies} are refused",
}


def decide(options: NsqadminOptions, hosts: Iterable[str]) -> Mode:
    """The mode of --access; ``auto`` depends on the other options.

    Args:
        options: as given.
        hosts: the addresses that are listened on, without port; "" is a unix socket.

    Raises:
        OptionsError: the options for access contradict each other.
    """
    _check(options)
    if options.access != "auto":
        return Mode(options.access)
    if options.admin_user:
        return Mode.ACL
    if options.users_file:
        return Mode.PASSWORD
    if all(not host or is_loopback(host) for host in hosts):
        return Mode.LOCAL
    return Mode.PASSWORD


def _check(options: NsqadminOptions) -> None:
    if options.admin_user and options.access in ("none", "password"):
        raise OptionsError(f"--admin-user can't be used with --access={options.access}")
    if options.users_file and (options.access in ("none", "proxy") or options.admin_user):
        raise OptionsError("--users-file requires --access=password and no --admin-user")
    if options.proxy_role_header and options.access != "proxy":
        raise OptionsError("--proxy-role-header requires --access=proxy")
    if options.session_lifetime_ns <= 0:
        raise OptionsError("--session-lifetime must be more than 0")


def explain(mode: Mode, options: NsqadminOptions) -> tuple[bool, str]:
    """Whether ``mode`` deserves a warning, and a log line on who may do what."""
    proxies = ",".join(options.trusted_proxy_cidr)
    text = _EXPLAINED[mode].format(
        header=options.acl_http_header,
        trust="" if proxies else ", which is trusted from every address: see --trusted-proxy-cidr",
        users=f"--users-file={options.users_file}" if options.users_file else "no users file",
        roles=f" and the role in {options.proxy_role_header}" if options.proxy_role_header else "",
        proxies=proxies or "loopback",
    )
    open_to_all = mode is Mode.NONE or (mode is Mode.ACL and not proxies)
    return open_to_all, f"ACCESS: {text}"


LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_MARKS: Final = ("X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Forwarded", "Via")


class Proxies:
    """The networks of trusted proxies (--trusted-proxy-cidr)."""

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
        """Whether ``host`` is a trusted proxy; "" is a unix socket, which counts as ::1."""
        address = _address(host or "::1")
        return address is not None and any(address in network for network in self._networks)

    def origin_of(self, host: str, headers: Headers) -> str:
        """The sender: ``host``, or the last address that our proxies name and is not theirs."""
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
    """Whether a request has headers that proxies add."""
    return any(name in headers for name in _MARKS)


def only_value(headers: Headers, name: str) -> str:
    """The value of a header, "" if there is none or more than one.

    Of two values, one may be the client's own.
    """
    values = headers.getlist(name)
    return values[0].strip() if len(values) == 1 else ""


def is_local_host(host: str) -> bool:
    """Whether ``host``, as a browser sent it, is a name or address of this machine only."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").lower()
    return name in ("", "localhost") or name.endswith(".localhost") or is_loopback(name)
