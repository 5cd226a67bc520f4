"""Other applications below a path of an application."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    # It takes long to import.
    from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

__all__ = ["NO_MOUNTS", "Mounts", "mounted"]

Mounts: TypeAlias = "Mapping[str, ASGIFramework]"
"""By the path that all of theirs begin with: ``/some``, which stands for ``/some/...`` too."""

NO_MOUNTS: Final[Mounts] = MappingProxyType({})


def mounted(app: ASGIFramework, mounts: Mounts) -> ASGIFramework:
    """``app``, but requests below the paths of ``mounts`` are theirs, with the whole path."""
    if not mounts:
        return app

    async def dispatch(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await _chosen(app, mounts, scope)(scope, receive, send)

    return dispatch


def _chosen(app: ASGIFramework, mounts: Mounts, scope: Scope) -> ASGIFramework:
    if scope["type"] == "http":
        for prefix, other in mounts.items():
            if scope["path"] == prefix or scope["path"].startswith(f"{prefix}/"):
                return other
    return app
