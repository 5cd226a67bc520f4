"""Endpoints that administer: topics and channels, and options by /config.

An option that was changed keeps its value until nsqd ends.

Spec: nsqd-http, sections 2 and 6.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from quart import Response

from trionsq.broker.backups import make_backup
from trionsq.broker.broker import Broker
from trionsq.broker.channel import Channel
from trionsq.broker.moving import MoveFailed
from trionsq.broker.statsd import statsd_prefix
from trionsq.broker.topic import Topic
from trionsq.core.channel import ChannelState
from trionsq.core.topic import TopicState
from trionsq.options import LOG_LEVEL, table
from trionsq.storage.letters import LetterError
from trionsq.storage.log.backup import BackupError, backup_path
from trionsq.storage.log.rows import StateError
from trionsq.web.protocol import HttpError, Query, valid_argument, valid_topic_name
from trionsq.web.request import query, read_body
from trionsq.web.responses import empty, json_document, text
from trionsq.wire.names import is_ephemeral

__all__ = ["Administration", "Configuration"]

log = logging.getLogger("trionsq")

_LOG_LEVELS: Final = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}
# The version numbers of the TLS protocol.
_TLS_VERSIONS: Final = {"tls1.0": 0x301, "tls1.1": 0x302, "tls1.2": 0x303, "tls1.3": 0x304}
_TLS_REQUIRED: Final = {"false": 0, "tcp-https": 1, "true": 2}
_BACKUP_NAME: Final = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_NUMBERED: Final[Mapping[str, Mapping[str, int]]] = {
    "log_level": _LOG_LEVELS,
    "tls_min_version": _TLS_VERSIONS,
    "tls_required": _TLS_REQUIRED,
}


class Administration:
    """The endpoints that change topics and channels. Their responses have no body."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def topic_named(self, name: str) -> Topic:
        """Return a topic; raises HttpError TOPIC_NOT_FOUND."""
        topic = self._broker.topics.get(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return topic

    def _existing_topic(self) -> Topic:
        name = query().get(b"topic")
        if name is None:
            raise HttpError(400, "MISSING_ARG_TOPIC")
        return self.topic_named(name.decode(errors="replace"))

    def topic_and_channel_name(self) -> tuple[Topic, str]:
        """Return what the query's parameters name; the channel need not exist; raises HttpError."""
        values = query()
        topic_name, channel_name = (
            valid_argument(values, b"topic"),
            valid_argument(values, b"channel"),
        )
        return self.topic_named(topic_name), channel_name

    def existing_channel(self) -> Channel:
        """Return the channel of the query's parameters; raises HttpError."""
        topic, name = self.topic_and_channel_name()
        channel = topic.channels.get(name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return channel

    async def create_topic(self) -> Response:
        """POST /topic/create; ``storage`` chooses where a new topic keeps its messages."""
        values = query()
        name, storage = valid_topic_name(values), _storage(values)
        if storage == "log" and is_ephemeral(name):
            raise HttpError(400, "EPHEMERAL_TOPIC_HAS_NO_LOG")
        if storage == "log" and name not in self._broker.topics:
            try:
                await self._broker.logs.ensure_node()
            except StateError as error:  # no topic had a log before
                raise HttpError(500, f"NOT_DURABLE: {error}") from error
        topic = self._broker.topic(name, storage)
        if storage not in ("", topic.storage):
            raise HttpError(409, "TOPIC_HAS_OTHER_STORAGE")
        if (prepared := topic.claim_wait()) is not None:
            await prepared.wait()
        return await self.durable()

    async def move_topic(self) -> Response:
        """POST /topic/move: give an existing topic a log, while clients use it."""
        values = query()
        name, storage = valid_topic_name(values), _storage(values)
        topic = self.topic_named(name)
        if storage != "log":
            raise HttpError(400, "INVALID_STORAGE")
        if topic.is_ephemeral:
            raise HttpError(400, "EPHEMERAL_TOPIC_HAS_NO_LOG")
        if topic.has_log:
            raise HttpError(409, "TOPIC_HAS_LOG")
        try:
            await self._broker.registry.moves.move(topic)
        except MoveFailed as error:
            raise HttpError(500, f"NOT_MOVED: {error}") from error
        return empty()

    async def back_up(self) -> Response:
        """POST /log/backup: make a backup of the logs and dead letters in the data path."""
        name = query().get(b"name")
        if name is None:
            raise HttpError(400, "MISSING_ARG_NAME")
        if not _BACKUP_NAME.fullmatch(name):
            raise HttpError(400, "INVALID_NAME")
        broker, text_ = self._broker, name.decode()
        try:
            sizes = await make_backup(broker.logs, broker.dead_letters, broker.folder, text_)
        except FileExistsError as error:
            raise HttpError(409, "BACKUP_EXISTS") from error
        except (BackupError, StateError) as error:
            raise HttpError(500, f"NO_BACKUP: {error}") from error
        path = backup_path(broker.folder.disk, text_)
        return json_document({"path": path, "segments": len(sizes), "bytes": sum(sizes.values())})

    async def delete_topic(self) -> Response:
        """POST /topic/delete: with its channels; their consumers are disconnected."""
        await self._broker.delete_topic(self._existing_topic().name).wait()
        return await self.durable()

    async def empty_topic(self) -> Response:
        """POST /topic/empty: drop the messages of the topic, not those of its channels."""
        topic = self.topic_named(valid_topic_name(query()))
        await topic.empty().wait()
        try:
            await self._broker.dead_letters.topic_emptied(topic.name)
        except LetterError as error:
            raise HttpError(500, f"NOT_DURABLE: {error}") from error
        return await self.durable()

    async def pause_topic(self) -> Response:
        """POST /topic/pause."""
        return await self._change_topic(Topic.pause)

    async def unpause_topic(self) -> Response:
        """POST /topic/unpause."""
        return await self._change_topic(Topic.unpause)

    async def create_channel(self) -> Response:
        """POST /channel/create: the topic must exist."""
        topic, name = self.topic_and_channel_name()
        topic.channel(name)
        return await self.durable()

    async def delete_channel(self) -> Response:
        """POST /channel/delete: its consumers are disconnected."""
        channel = self.existing_channel()
        await channel.topic.delete_channel(channel.name).wait()
        return await self.durable()

    async def empty_channel(self) -> Response:
        """POST /channel/empty: drop its waiting, in-flight and deferred messages."""
        await self.existing_channel().empty().wait()
        return await self.durable()

    async def pause_channel(self) -> Response:
        """POST /channel/pause."""
        return await self._change_channel(Channel.pause)

    async def unpause_channel(self) -> Response:
        """POST /channel/unpause."""
        return await self._change_channel(Channel.unpause)

    async def _change_topic(self, change: Callable[[Topic], None]) -> Response:
        topic = self._existing_topic()
        change(topic)
        await self._broker.save_metadata()
        return await self.durable(topic.core)

    async def _change_channel(self, change: Callable[[Channel], None]) -> Response:
        channel = self.existing_channel()
        change(channel)
        await self._broker.save_metadata()
        topic = self._broker.topics.get(channel.topic.name)
        return await self.durable(None if topic is None else topic.core, channel.core)

    async def durable(
        self, topic: TopicState | None = None, channel: ChannelState | None = None
    ) -> Response:
        """The response to a change: what is in the state of the logs waits for its commit."""
        await self._broker.registry.moves.decided()
        error = await self._broker.logs.commit(topic, channel)
        if error is not None:
            raise HttpError(500, f"NOT_DURABLE: {error}")
        return empty()


def _storage(values: Query) -> str:
    storage = values.get(b"storage", b"").decode(errors="replace")
    if storage not in ("", "default", "log"):
        raise HttpError(400, "INVALID_STORAGE")
    return storage


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
        """GET /config/:opt: the option with that key in the config file."""
        if opt not in self._rows:
            raise HttpError(400, "INVALID_OPTION")
        value = self._value(opt)
        if isinstance(value, str):
            return text(value) if value else empty()
        return json_document(value)

    async def put(self, opt: str) -> Response:
        """PUT /config/:opt: change the option; the response is its new value."""
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

    def _value(self, key: str) -> Any:
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
