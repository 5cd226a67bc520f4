"""Where users come from (--access), decided once at the start."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

from admin.options import NsqadminOptions, OptionsError
from trionsq.web.sites import is_loopback

__all__ = ["Mode", "decide", "explain"]


class Mode(enum.Enum):
    """A way to know users."""

    NONE = "none"
    LOCAL = "local"
    ACL = "acl"
    PASSWORD = "password"
    PROXY = "proxy"


_EXPLAINED: Final = {
    Mode.NONE: "everybody who reaches this address may do everything (--access=none)",
    Mode.LOCAL: "everybody on this machine may do everything, and no other machine gets here; "
    "what comes through a proxy is for reading only",
    Mode.ACL: "everybody may read; users of --admin-user, named by the header {header}, may change "
    "things{trust}",
    Mode.PASSWORD: "users sign in with a password ({users}); each has a role",
    Mode.PROXY: "a proxy names the user in the header {header}{roles}; other addresses than "
    "{proxies} are refused",
}


def decide(options: NsqadminOptions, hosts: Iterable[str]) -> Mode:
    """The way of --access; ``auto`` depends on what else is given.

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
        raise OptionsError(f"--admin-user has no meaning with --access={options.access}")
    if options.users_file and (options.access in ("none", "proxy") or options.admin_user):
        raise OptionsError("--users-file is for --access=password, without --admin-user")
    if options.proxy_role_header and options.access != "proxy":
        raise OptionsError("--proxy-role-header is for --access=proxy")
    if options.session_lifetime_ns <= 0:
        raise OptionsError("--session-lifetime must be more than 0")


def explain(mode: Mode, options: NsqadminOptions) -> tuple[bool, str]:
    """Whether ``mode`` deserves a warning, and one line on who may do what."""
    proxies = ",".join(options.trusted_proxy_cidr)
    text = _EXPLAINED[mode].format(
        header=options.acl_http_header,
        trust="" if proxies else ", which is believed of everybody: see --trusted-proxy-cidr",
        users=f"--users-file={options.users_file}" if options.users_file else "no users file",
        roles=f" and the role in {options.proxy_role_header}" if options.proxy_role_header else "",
        proxies=proxies or "loopback",
    )
    open_to_all = mode is Mode.NONE or (mode is Mode.ACL and not proxies)
    return open_to_all, f"ACCESS: {text}"
