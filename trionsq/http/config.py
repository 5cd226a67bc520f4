"""/config/:opt: options are shown, and two of them changed, while nsqd runs.

Spec: nsqd-http, section 6. What is changed lasts until nsqd ends.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.statsd import statsd_prefix
from trionsq.options import LOG_LEVEL, table
from trionsq.web.answers import empty, json_document, text
from trionsq.web.body import read_body
from trionsq.web.errors import HttpError

__all__ = ["Configuration"]

log = logging.getLogger("trionsq")

_LOG_LEVELS: Final = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}
# Numbers that TLS itself has for its versions.
_TLS_VERSIONS: Final = {"tls1.0": 0x301, "tls1.1": 0x302, "tls1.2": 0x303, "tls1.3": 0x304}
_TLS_REQUIRED: Final = {"false": 0, "tcp-https": 1, "true": 2}
_NUMBERED: Final[Mapping[str, Mapping[str, int]]] = {
    "log_level": _LOG_LEVELS,
    "tls_min_version": _TLS_VERSIONS,
    "tls_required": _TLS_REQUIRED,
}


class Configuration:
    """The endpoints of /config."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._rows = {
            spec.key: (name, spec) for name, spec in table(broker.options) if spec.key is not None
        }
        self._changes: dict[str, Callable[[str], None]] = {
            "log_level": self._change_log_level,
            "nsqlookupd_tcp_addresses": self._change_lookupds,
        }

    async def get(self, opt: str) -> Response:
        """GET /config/:opt: the option of that key in the config file."""
        if opt not in self._rows:
            raise HttpError(400, "INVALID_OPTION")
        value = self._shown(opt)
        if isinstance(value, str):
            return text(value) if value else empty()
        return json_document(value)

    async def put(self, opt: str) -> Response:
        """PUT /config/:opt: change it, and answer with the new value."""
        body = await read_body(self._broker.options.max_msg_size)
        if not body:
            raise HttpError(413, "INVALID_VALUE")
        change = self._changes.get(opt)
        if change is None:
            raise HttpError(400, "INVALID_OPTION")
        try:
            change(body.decode(errors="replace"))
        except (ValueError, RecursionError):
            raise HttpError(400, "INVALID_VALUE") from None
        name, _ = self._rows[opt]
        log.info("HTTP: option %s is now %r", opt, getattr(self._broker.options, name))
        return await self.get(opt)

    def _shown(self, key: str) -> Any:
        broker = self._broker
        value = getattr(broker.options, self._rows[key][0])
        if key in _NUMBERED:
            return _NUMBERED[key][value]
        if key == "broadcast_tcp_port":
            return value or broker.ports.tcp
        if key == "broadcast_http_port":
            return value or broker.ports.http
        if key == "statsd_prefix":
            return statsd_prefix(broker.options, broker.ports)
        return value

    def _change_log_level(self, value: str) -> None:
        if not value.isalpha():
            raise ValueError(value)
        self._broker.live_options.change_log_level(str(LOG_LEVEL.parse(value)))

    def _change_lookupds(self, value: str) -> None:
        addresses = json.loads(value)
        if addresses is None:
            self._broker.live_options.change_lookupds(None)
        elif isinstance(addresses, list) and all(isinstance(each, str) for each in addresses):
            self._broker.live_options.change_lookupds(tuple(addresses))
        else:
            raise ValueError(value)
