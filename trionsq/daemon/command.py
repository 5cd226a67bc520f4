"""Start of a command: from command line and config file to options, or to an exit code."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import resource
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from trionsq import NSQ_VERSION
from trionsq.daemon import flags, log
from trionsq.options import FatalValueError, Value, default_of, table

T = TypeVar("T")

# The Go release of the original's published binaries; scripts match the whole line.
_BUILT_WITH = "built w/go1.19.8"
# Of glibc, in malloc.h.
_M_ARENA_MAX: Final = -8


def read_options(options: type[T], command: str, words: Sequence[str]) -> tuple[T, list[str]]:
    """Return the options that *words* and the config file give, and warnings to log.

    *options* is a dataclass as in `trionsq.options` with fields version, config and
    log_prefix.

    Raises:
        SystemExit: 0 after --help or --version, 2 after a usage error, 1 after a FATAL line.
    """
    try:
        arguments = flags.parse(options, words)
    except flags.HelpRequested:
        sys.stdout.write(flags.usage(options, command))
        raise SystemExit(0) from None
    except flags.UsageError as error:
        sys.stderr.write(f"{error}\n{flags.usage(options, command)}")
        raise SystemExit(2) from None
    except FatalValueError as error:
        fatal(default_of(options, "log_prefix"), str(error))
    if arguments.values.get("version"):
        print(f"{command} v{NSQ_VERSION} ({_BUILT_WITH})")
        raise SystemExit(0)
    values: dict[str, Any] = {}
    warnings = list(arguments.warnings)
    path = arguments.values.get("config")
    prefix = str(arguments.values.get("log_prefix", default_of(options, "log_prefix")))
    form = str(arguments.values.get("log_format", "classic"))
    if isinstance(path, str) and path:
        try:
            content = load_config_file(options, path)
        except ConfigFileError as error:
            fatal(prefix, str(error), form)
        values.update(content.values)
        warnings.extend(content.warnings)
    values.update(arguments.values)
    if arguments.rest:
        warnings.append(f"ignored arguments: {' '.join(arguments.rest)}")
    return options(**values), warnings


def fatal(prefix: str, text: str, form: str = "classic") -> NoReturn:
    """Write one FATAL line to stderr, in *form* as `log.configure`, and exit with 1."""
    log.configure(prefix, "info", form=form).critical("%s", text)
    raise SystemExit(1)


class ConfigFileError(Exception):
    """A config file that cannot be used; ``str()`` is the text of the FATAL log line."""

    def __init__(self, path: str, reason: object) -> None:
        super().__init__(f"failed to load config file {path} - {reason}")


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of a config file.

    *values* are by field name, only those that it sets; *warnings* name the ignored keys.
    """

    values: dict[str, Value]
    warnings: tuple[str, ...]


def load_config_file(options: type, path: str) -> ConfigFile:
    """Return the values that the file sets; keys that no option has are ignored with a warning.

    Raises:
        ConfigFileError: no such file, not TOML, or a value of the wrong type.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigFileError(path, error.strerror) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or a number too long
        raise ConfigFileError(path, error) from None
    by_key = {spec.key: (name, spec) for name, spec in table(options) if spec.key is not None}
    values: dict[str, Value] = {}
    for key in content.keys() & by_key.keys():
        name, spec = by_key[key]
        try:
            values[name] = spec.kind.from_config(content[key])
        except ValueError as error:
            raise ConfigFileError(path, f"{key}: {error}") from None
    unknown = [key for key in content if key not in by_key]
    return ConfigFile(values, tuple(_remark(options, path, key) for key in unknown))


def _remark(options: type, path: str, key: str) -> str:
    text = key if key.isprintable() else repr(key)
    why = f"ignored unknown key in config file {path}: {text}"
    for name, spec in table(options):
        if key.replace("-", "_") in (name, spec.flag.replace("-", "_"), spec.key):
            return (
                f"{why}; the key is {spec.key}"
                if spec.key
                else f"{why}; it is available as a flag only"
            )
    return why


def prepare_process() -> None:
    """Raise the limit of open files, and have all threads allocate from one arena."""
    _raise_open_files_limit()
    _share_arena()


def _raise_open_files_limit() -> None:
    """Raise the limit of open files, and so of connections, to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse an unlimited hard limit here; then the soft limit stays.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _share_arena() -> None:
    """Have all threads allocate from one arena, if the C library is glibc.

    glibc gives each thread an arena of its own, and no thread reuses what is free in the others: a
    million deferred messages in a log took 120 to 160 MB, and take 112 with one arena. Threads
    don't wait for each other in it: the GIL lets one allocate at a time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
