"""The command ``nsqlookupd``: options, log, and its life until SIGINT or SIGTERM."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lookupd.options import NsqlookupdOptions
from trionsq.daemon import log
from trionsq.daemon.command import fatal, prepare_process, read_options

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after a usage error, 1 when it cannot start.
    """
    words = sys.argv[1:] if argv is None else argv
    options, warnings = read_options(NsqlookupdOptions, "nsqlookupd", words)
    logger = log.configure(options.log_prefix, options.log_level, form=options.log_format)
    for warning in warnings:
        logger.warning("%s", warning)
    prepare_process()
    # Here, because they take long to import: --help and --version do without.
    import trio

    from lookupd.daemon import run_nsqlookupd
    from trionsq.daemon.acl import AclError
    from trionsq.daemon.listener import ListenError

    try:
        return trio.run(run_nsqlookupd, options)
    except (AclError, ListenError) as error:
        text = f"failed to instantiate nsqlookupd - {error}"
        fatal(options.log_prefix, text, options.log_format)


if __name__ == "__main__":
    raise SystemExit(main())
