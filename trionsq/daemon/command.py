"""What the commands share: from a command line to options, or to the right exit code."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from trionsq import NSQ_VERSION
from trionsq.daemon import config, flags, log
from trionsq.options import FatalValueError, default_of

T = TypeVar("T")

# The Go release of the original's published binaries; scripts match the whole line.
_BUILT_WITH = "built w/go1.19.8"


def read_options(options: type[T], command: str, words: Sequence[str]) -> tuple[T, list[str]]:
    """Return the options that *words* and the config file give, and warnings to log.

    *options* is a dataclass as in `trionsq.options` with fields version, config and
    log_prefix.

    Raises:
        SystemExit: 0 after --help or --version, 2 after a usage error, 1 after a FATAL line.
    """
    try:
        given = flags.parse(options, words)
    except flags.HelpRequested:
        sys.stdout.write(flags.usage(options, command))
        raise SystemExit(0) from None
    except flags.UsageError as error:
        sys.stderr.write(f"{error}\n{flags.usage(options, command)}")
        raise SystemExit(2) from None
    except FatalValueError as error:
        fatal(default_of(options, "log_prefix"), str(error))
    if given.values.get("version"):
        print(f"{command} v{NSQ_VERSION} ({_BUILT_WITH})")
        raise SystemExit(0)
    values: dict[str, Any] = {}
    warnings = list(given.warnings)
    path = given.values.get("config")
    prefix = str(given.values.get("log_prefix", default_of(options, "log_prefix")))
    form = str(given.values.get("log_format", "classic"))
    if isinstance(path, str) and path:
        try:
            content = config.load(options, path)
        except config.ConfigError as error:
            fatal(prefix, str(error), form)
        values.update(content.values)
        warnings.extend(content.warnings)
    values.update(given.values)
    if given.rest:
        warnings.append(f"ignored on the command line: {' '.join(given.rest)}")
    return options(**values), warnings


def fatal(prefix: str, text: str, form: str = "classic") -> NoReturn:
    """Write one FATAL line to stderr, in *form* as `log.configure`, and exit with 1."""
    log.configure(prefix, "info", form=form).critical("%s", text)
    raise SystemExit(1)
