"""The TOML config file of a daemon: keys and values by the table of its options dataclass."""

import dataclasses
import tomllib
from pathlib import Path

from trionsq.options import Value, table


class ConfigError(Exception):
    """A config file that cannot be used; ``str()`` is the text of the FATAL log line."""

    def __init__(self, path: str, reason: object) -> None:
        super().__init__(f"failed to load config file {path} - {reason}")


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """What a config file says.

    *values* are by field name, only those given; *warnings* are remarks on what is ignored.
    """

    values: dict[str, Value]
    warnings: tuple[str, ...]


def load(options: type, path: str) -> Content:
    """Return the values that the file sets; keys that no option has are ignored with a warning.

    Raises:
        ConfigError: no such file, not TOML, or a value of the wrong type.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(path, error.strerror) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or a number too long
        raise ConfigError(path, error) from None
    by_key = {spec.key: (name, spec) for name, spec in table(options) if spec.key is not None}
    values: dict[str, Value] = {}
    for key in content.keys() & by_key.keys():
        name, spec = by_key[key]
        try:
            values[name] = spec.kind.from_config(content[key])
        except ValueError as error:
            raise ConfigError(path, f"{key}: {error}") from None
    unknown = [key for key in content if key not in by_key]
    return Content(values, tuple(_remark(options, path, key) for key in unknown))


def _remark(options: type, path: str, key: str) -> str:
    shown = key if key.isprintable() else repr(key)
    why = f"ignored in config file {path}: {shown} is no key of it"
    for name, spec in table(options):
        if key.replace("-", "_") in (name, spec.flag.replace("-", "_"), spec.key):
            return f"{why}; the key is {spec.key}" if spec.key else f"{why}; it is a flag only"
    return why
