"""/config/:opt: read options, and change two of them, while nsqadmin runs.

A change lasts until nsqadmin stops. Spec: nsqadmin, section 5.
"""

from __future__ import annotations

import json
import logging
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from quart import Response, request

from admin.dashboard import Dashboard
from admin.options import config_network
from trionsq.daemon import log as logs
from trionsq.options import LOG_LEVEL, table
from trionsq.web.protocol import HttpError
from trionsq.web.request import read_body
from trionsq.web.responses import empty, json_document, text

__all__ = ["Configuration"]

log = logging.getLogger("trionsq")

_MAX_BODY_BYTES: Final = 1024 * 1024
_LOG_LEVELS: Final = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}


class Configuration:
    """The endpoints of /config."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._network = config_network(dashboard.options)
        self._log_level = dashboard.options.log_level
        self._fields = {
            spec.key: name for name, spec in table(dashboard.options) if spec.key is not None
        }

    async def get(self, opt: str) -> Response:
        """GET /config/:opt: the option of that key in the config file."""
        self._check_sender()
        if opt not in self._fields:
            raise HttpError(400, "INVALID_OPTION")
        value = self._shown(opt)
        if isinstance(value, str):
            return text(value) if value else empty()
        return json_document(value)

    async def put(self, opt: str) -> Response:
        """PUT /config/:opt: change it, and answer with the new value."""
        self._check_sender()
        body = await read_body(_MAX_BODY_BYTES)
        if not body:
            raise HttpError(413, "INVALID_VALUE")
        changes = {
            "nsqlookupd_http_addresses": self._change_lookupds,
            "log_level": self._change_log_level,
        }
        if opt not in changes:
            raise HttpError(400, "INVALID_OPTION")
        try:
            changes[opt](body.decode(errors="replace"))
        except (ValueError, RecursionError):
            raise HttpError(400, "INVALID_VALUE") from None
        log.info("HTTP: option %s is now %r", opt, self._shown(opt))
        return await self.get(opt)

    def _check_sender(self) -> None:
        if self._network is None:
            return
        client = request.scope.get("client")
        try:
            address: IPv4Address | IPv6Address = ip_address(client[0] if client else "")
        except ValueError:
            raise HttpError(400, "INVALID_REMOTE_ADDR") from None
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if address not in self._network:
            raise HttpError(403, "FORBIDDEN")

    def _shown(self, key: str) -> Any:
        if key == "log_level":
            return _LOG_LEVELS[self._log_level]
        if key == "nsqlookupd_http_addresses":
            return self._dashboard.cluster.lookupd_addresses
        return getattr(self._dashboard.options, self._fields[key])

    def _change_log_level(self, value: str) -> None:
        if not value.isalpha():
            raise ValueError(value)
        self._log_level = str(LOG_LEVEL.parse(value))
        logs.set_level(self._log_level)

    def _change_lookupds(self, value: str) -> None:
        addresses = json.loads(value)
        if addresses is None:
            addresses = []
        if not isinstance(addresses, list) or not all(isinstance(each, str) for each in addresses):
            raise ValueError(value)
        self._dashboard.cluster.lookupd_addresses = tuple(addresses)
