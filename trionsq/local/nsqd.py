"""The command ``nsqd``: options, log, and the broker's life until SIGINT or SIGTERM."""

import sys
from collections.abc import Sequence

from trionsq.broker.options import NsqdOptions, OptionsError, validated
from trionsq.daemon import log
from trionsq.daemon.command import fatal, prepare_process, read_options
from trionsq.logtext import first_error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after a usage error, 1 when it cannot start.
    """
    words = sys.argv[1:] if argv is None else argv
    options, warnings = read_options(NsqdOptions, "nsqd", words)
    logger = log.configure(options.log_prefix, options.log_level, form=options.log_format)
    try:
        options = validated(options)
    except OptionsError as error:
        fatal(options.log_prefix, str(error), options.log_format)
    for warning in warnings:
        logger.warning("%s", warning)
    prepare_process()
    return _run(options)


def _run(options: NsqdOptions) -> int:
    # Here, because they take long to import: --help and --version do without.
    import trio

    from trionsq.daemon.acl import AclError
    from trionsq.daemon.listener import ListenError
    from trionsq.local.nsqd_daemon import run_nsqd
    from trionsq.storage.folder import DataPathError
    from trionsq.storage.metadata import MetadataError
    from trionsq.transports.certificates import TlsConfigError

    # Raised after the groups: what is raised among them becomes a group itself.
    failure = ""
    code = 1
    try:
        code = trio.run(run_nsqd, options)
    except* (AclError, DataPathError, TlsConfigError) as group:
        failure = f"failed to instantiate nsqd - {first_error(group)}"
    except* (ListenError, MetadataError, OptionsError) as group:
        failure = str(first_error(group))
    if failure:
        fatal(options.log_prefix, failure, options.log_format)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
