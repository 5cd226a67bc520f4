"""The command ``nsqadmin``: options, log, and its life until SIGINT or SIGTERM."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from admin.options import NsqadminOptions, OptionsError
from trionsq.daemon import log
from trionsq.daemon.command import fatal, prepare_process, read_options

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after a usage error, 1 when it cannot start.
    """
    words = sys.argv[1:] if argv is None else argv
    options, warnings = read_options(NsqadminOptions, "nsqadmin", words)
    logger = log.configure(options.log_prefix, options.log_level, form=options.log_format)
    for warning in warnings:
        logger.warning("%s", warning)
    if options.add_user:
        return _add_user(options)
    prepare_process()
    # Here, because they take long to import: --help and --version do without.
    import trio

    from admin.daemon import run_nsqadmin
    from trionsq.daemon.listener import ListenError

    try:
        return trio.run(run_nsqadmin, options)
    except (ListenError, OptionsError) as error:
        text = f"failed to instantiate nsqadmin - {error}"
        fatal(options.log_prefix, text, options.log_format)


def _add_user(options: NsqadminOptions) -> int:
    from admin.access.passwords import add_user

    try:
        add_user(options.add_user, options.users_file)
    except OptionsError as error:
        fatal(options.log_prefix, str(error), options.log_format)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
