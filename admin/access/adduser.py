"""``nsqadmin --add-user name:role``: a line for the users file."""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import tempfile
from pathlib import Path

from admin.access.passwords import hash_password
from admin.access.roles import Role
from admin.access.users import NAME, UsersError, parse_users
from admin.options import OptionsError

__all__ = ["add_user"]


def add_user(who: str, users_file: str) -> None:
    """Ask for the password of ``who``, ``name:role``; then write the line.

    It takes the place of the user's line in ``users_file``, or is added there; without a file it
    goes to standard output. The password is read from a terminal, twice, else it is the first
    line of standard input.

    Raises:
        OptionsError: not a name and a role, no password, or the file can't be read or written.
    """
    name, _, title = who.partition(":")
    if not NAME.fullmatch(name):
        raise OptionsError("--add-user must be name:role, a name has no spaces, colons or commas")
    try:
        role = Role.named(title)
        line = f"{name}:{role.title}:{hash_password(_ask())}"
    except ValueError as error:
        raise OptionsError(f"--add-user: {error}") from None
    if not users_file:
        print(line)
        return
    try:
        _put(Path(users_file), name, line)
    except OSError as error:
        raise OptionsError(f"failed to write {users_file} - {error.strerror}") from None
    except (UsersError, UnicodeDecodeError) as error:
        raise OptionsError(f"failed to read {users_file} - {error}") from None


def _ask() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise ValueError("the two are not alike")
    return password


def _put(path: Path, name: str, line: str) -> None:
    """Replace the line of ``name``, or add one; the file is the old one or the new one."""
    path = path.resolve()
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    parse_users(old)
    kept = [kept for kept in old.splitlines() if not kept.strip().startswith(f"{name}:")]
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join([*kept, line, ""]))
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            found = path.stat()
            os.chmod(draft, found.st_mode & 0o777)
            with contextlib.suppress(PermissionError):  # of somebody else: it becomes ours
                os.chown(draft, found.st_uid, found.st_gid)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
