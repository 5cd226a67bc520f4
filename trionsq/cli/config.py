"""The TOML config file of a daemon: keys and values by the table of its options dataclass."""

import tomllib
from pathlib import Path

from trionsq.optionspec import Value, table


class ConfigError(Exception):
    """A config file that cannot be used; ``str()`` is the text of the FATAL log line."""

    def __init__(self, path: str, reason: object) -> None:
        super().__init__(f"failed to load config file {path} - {reason}")


def load(options: type, path: str) -> dict[str, Value]:
    """Return the values, by field name, that the file sets; keys that no option has are ignored.

    Raises:
        ConfigError: no such file, not TOML, or a value of the wrong type.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(path, error.strerror) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(path, error) from None
    values: dict[str, Value] = {}
    for name, spec in table(options):
        if spec.key is None or spec.key not in content:
            continue
        try:
            values[name] = spec.kind.from_config(content[spec.key])
        except ValueError as error:
            raise ConfigError(path, f"{spec.key}: {error}") from None
    return values
