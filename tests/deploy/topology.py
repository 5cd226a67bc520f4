"""The content of deploy/compose.yaml, read as the compose client reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

__all__ = ["COMPOSE_FILE", "DEPLOY", "Service", "broker_services", "compose"]

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
COMPOSE_FILE: Final = DEPLOY / "compose.yaml"

_VARIABLE: Final = re.compile(r"\$\{([A-Z_]+):-([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Service:
    """A service of the file.

    Attributes:
        command: the words.
        healthcheck: those of its test, without CMD; empty if it has none.
        mounts: paths in the container, and the volume's name or the path beside the file.
        profiles: none means that it always runs.
    """

    name: str
    command: tuple[str, ...]
    healthcheck: tuple[str, ...]
    mounts: Mapping[str, str]
    profiles: tuple[str, ...]


def compose(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The file with its variables filled in, from ``environ`` or by their defaults."""
    content = _filled(yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8")), environ or {})
    assert isinstance(content, dict)
    return content


def _filled(value: Any, environ: Mapping[str, str]) -> Any:
    """In texts only, after they are read: a number that is filled in stays a text."""
    match value:
        case str():
            return _VARIABLE.sub(lambda found: environ.get(found[1], found[2]), value)
        case list():
            return [_filled(one, environ) for one in value]
        case dict():
            return {key: _filled(one, environ) for key, one in value.items()}
    return value


def services() -> dict[str, Service]:
    """All services by name."""
    return {name: _service(name, told) for name, told in compose()["services"].items()}


def broker_services() -> dict[str, Service]:
    """Those that run without a profile: nsqlookupd, nsqd, nsqadmin."""
    return {name: service for name, service in services().items() if not service.profiles}


def _service(name: str, told: Mapping[str, Any]) -> Service:
    test = told.get("healthcheck", {}).get("test", [])
    mounts = {}
    for line in told.get("volumes", ()):
        source, target, *_ = line.split(":")
        mounts[target] = source
    return Service(
        name,
        tuple(told.get("command", ())),
        tuple(test[1:]),
        mounts,
        tuple(told.get("profiles", ())),
    )
