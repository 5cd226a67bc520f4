"""From the options to an `Access`, and a line in the log on who may do what."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Final

import trio

from admin.access.guard import Access
from admin.access.modes import Mode, decide, explain
from admin.access.passwords import hash_password
from admin.access.roles import Role
from admin.access.users import Account, FixedUsers, Users, UsersError, UsersFile
from admin.options import NsqadminOptions, OptionsError

__all__ = ["open_access"]

log = logging.getLogger("trionsq")

_GENERATED_NBYTES: Final = 12


def open_access(
    options: NsqadminOptions,
    hosts: Iterable[str],
    now_s: Callable[[], float] = trio.current_time,
) -> Access:
    """The access that ``options`` ask for.

    Args:
        options: validated.
        hosts: the addresses that are listened on, without port; "" is a unix socket.
        now_s: the clock of sessions and waiting times, in seconds.

    Raises:
        OptionsError: the options for access are no good, or one of their files is.
    """
    mode = decide(options, hosts)
    users = _users(options, mode, now_s)
    try:
        access = Access(options, mode, users, now_s)
    except OSError as error:
        reason = f"failed to open --audit-file ({options.audit_file}) - {error.strerror}"
        raise OptionsError(reason) from None
    warn, text = explain(mode, options)
    log.log(logging.WARNING if warn else logging.INFO, "%s", text)
    return access


def _users(options: NsqadminOptions, mode: Mode, now_s: Callable[[], float]) -> Users:
    if mode is not Mode.PASSWORD:
        return FixedUsers()
    if not options.users_file:
        password = secrets.token_urlsafe(_GENERATED_NBYTES)
        # The one password that is ever logged: nobody else could know it, and it ends with us.
        log.warning("ACCESS: no users file: sign in as admin, password %s", password)
        return FixedUsers(Account("admin", Role.ADMIN, hash_password(password)))
    try:
        return UsersFile(options.users_file, now_s)
    except UsersError as error:
        reason = f"failed to read --users-file ({options.users_file}) - {error}"
        raise OptionsError(reason) from None
