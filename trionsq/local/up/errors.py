"""What can go wrong with a cluster as a whole."""

from __future__ import annotations

import errno

from admin.options import OptionsError as AdminOptionsError
from trionsq.broker.options import OptionsError
from trionsq.daemon.listener import ListenError
from trionsq.storage.folder import DataPathError
from trionsq.storage.metadata import MetadataError

__all__ = ["UpError", "leaf_of", "start_error"]

_IN_USE = (
    "another program has that port, perhaps another cluster (ss -ltnp names it): stop it, or "
    "choose other ports by --port, --lookupd-port and --admin-port (0: any free ones)"
)


class UpError(Exception):
    """The cluster can't start or go on; ``str()`` says why in one line."""


def leaf_of(error: BaseException) -> BaseException:
    """The first error in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def start_error(error: BaseException) -> str | None:
    """One line for what commonly keeps a daemon from starting; None: a defect."""
    leaf = leaf_of(error)
    if isinstance(leaf, ListenError):
        cause = leaf.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
            return f"{leaf}: {_IN_USE}"
        return str(leaf)
    if isinstance(leaf, AdminOptionsError | DataPathError | MetadataError | OptionsError):
        return str(leaf)
    return None
