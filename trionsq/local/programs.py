"""The installed commands that need more than the client: an extra that is missing is named."""

from __future__ import annotations

import sys
from importlib import import_module

from trionsq.installation import require_extra, require_own_package

__all__ = ["nsq_to_http", "nsqadmin", "nsqd", "nsqlookupd", "trionsq"]


def nsqd() -> int:
    """Run nsqd; the exit code."""
    with_dashboard = any(word.lstrip("-").split("=")[0] == "admin" for word in sys.argv[1:])
    return _run("nsqd", "trionsq.local.nsqd", *(["admin"] if with_dashboard else []))


def nsqlookupd() -> int:
    """Run nsqlookupd; the exit code."""
    return _run("nsqlookupd", "lookupd.cli", "lookupd")


def nsqadmin() -> int:
    """Run nsqadmin; the exit code."""
    return _run("nsqadmin", "admin.cli", "admin")


def trionsq() -> int:
    """Run the command trionsq; the exit code."""
    return _run("trionsq", "trionsq.local.main", "admin", "lookupd")


def nsq_to_http() -> int:
    """Run nsq_to_http; the exit code."""
    return _run("nsq_to_http", "trionsq.tools.nsq_to_http", extra="http")


def _run(program: str, module: str, *packages: str, extra: str = "server") -> int:
    """Run ``main`` of a module; 1 with a line on stderr if something is missing or hidden."""
    try:
        require_extra(extra)
        for package in packages:
            require_own_package(package)
    except ImportError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    return int(import_module(module).main() or 0)
