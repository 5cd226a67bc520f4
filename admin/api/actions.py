"""Actions of users: create, delete, pause, unpause, empty, tombstone. Spec: nsqadmin, section 3."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from quart import Response

from admin.api.responses import require_role, response, upstream_errors
from admin.cluster.steps import Verb
from admin.dashboard import Dashboard, Role
from trionsq.web.protocol import HttpError
from trionsq.web.request import read_body
from trionsq.wire.names import is_valid_name

__all__ = ["Actions"]

T = TypeVar("T")

_MAX_BODY_BYTES: Final = 1024 * 1024
# The role that a verb requires.
_ROLES: Final[dict[str, Role]] = {"pause": "operator", "unpause": "operator", "empty": "admin"}
_VERBS: Final[dict[str, Verb]] = {"pause": "pause", "unpause": "unpause", "empty": "empty"}


class _Names(msgspec.Struct):
    topic: str = ""
    channel: str = ""


class _Action(msgspec.Struct):
    action: str = ""


class Actions:
    """The endpoints that change something."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    async def create(self) -> Response:
        """POST /api/topics: a topic and maybe a channel."""
        require_role(self._dashboard, "operator")
        names = await _body(_Names)
        if not is_valid_name(names.topic.encode()):
            raise HttpError(400, "INVALID_TOPIC")
        if names.channel and not is_valid_name(names.channel.encode()):
            raise HttpError(400, "INVALID_CHANNEL")
        return response(await self._dashboard.operations.create(names.topic, names.channel))

    async def topic_action(self, topic: str) -> Response:
        """POST /api/topics/:topic: pause, unpause or empty."""
        return await self._act(topic)

    async def channel_action(self, topic: str, channel: str) -> Response:
        """POST /api/topics/:topic/:channel: pause, unpause or empty."""
        return await self._act(topic, channel)

    async def delete_topic(self, topic: str) -> Response:
        """DELETE /api/topics/:topic."""
        return await self._delete(topic)

    async def delete_channel(self, topic: str, channel: str) -> Response:
        """DELETE /api/topics/:topic/:channel."""
        return await self._delete(topic, channel)

    async def tombstone(self, node: str) -> Response:
        """DELETE /api/nodes/:node: hide it from the lookups of a topic."""
        require_role(self._dashboard, "admin")
        try:
            names = await _body(_Names)
        except HttpError as error:
            raise HttpError(error.status, "INVALID_BODY") from None
        if not is_valid_name(names.topic.encode()):
            raise HttpError(400, "INVALID_TOPIC")
        with upstream_errors():
            return response(await self._dashboard.operations.tombstone(node, names.topic))

    async def _delete(self, topic: str, channel: str = "") -> Response:
        require_role(self._dashboard, "admin")
        with upstream_errors():
            return response(await self._dashboard.operations.delete(topic, channel))

    async def _act(self, topic: str, channel: str = "") -> Response:
        require_role(self._dashboard, "operator")
        verb = (await _body(_Action)).action
        if verb not in _VERBS:
            raise HttpError(400, "INVALID_ACTION")
        require_role(self._dashboard, _ROLES[verb])
        with upstream_errors():
            result = await self._dashboard.operations.apply(_VERBS[verb], topic, channel)
            return response(result.warnings)


async def _body(kind: type[T]) -> T:
    """The body as JSON, whatever its Content-Type. Raises HttpError: it is not valid."""
    body = await read_body(_MAX_BODY_BYTES)
    if body is None:
        raise HttpError(413, "BODY_TOO_BIG")
    if not body:
        raise HttpError(400, "EOF")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, str(error)) from None
