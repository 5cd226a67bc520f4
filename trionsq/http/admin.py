"""Topics and channels: create, delete, empty, pause, unpause. Spec: nsqd-http, section 2."""

from __future__ import annotations

from collections.abc import Callable

from quart import Response

from trionsq.broker.broker import Broker
from trionsq.broker.channel import Channel
from trionsq.broker.topic import Topic
from trionsq.web.answers import empty
from trionsq.web.errors import HttpError
from trionsq.web.query import query, valid_argument, valid_topic_name

__all__ = ["Administration"]


class Administration:
    """The endpoints that change topics and channels. All answer with an empty body."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def topic_named(self, name: str) -> Topic:
        """Raises HttpError TOPIC_NOT_FOUND."""
        topic = self._broker.topics.get(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return topic

    def _existing_topic(self) -> Topic:
        name = query().get(b"topic")
        if name is None:
            raise HttpError(400, "MISSING_ARG_TOPIC")
        return self.topic_named(name.decode(errors="replace"))

    def _topic_and_channel_name(self) -> tuple[Topic, str]:
        values = query()
        topic_name, channel_name = (
            valid_argument(values, b"topic"),
            valid_argument(values, b"channel"),
        )
        return self.topic_named(topic_name), channel_name

    def existing_channel(self) -> Channel:
        """The one that the query names, or HttpError."""
        topic, name = self._topic_and_channel_name()
        channel = topic.channels.get(name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return channel

    async def create_topic(self) -> Response:
        """POST /topic/create."""
        topic = self._broker.topic(valid_topic_name(query()))
        if (prepared := topic.claim_wait()) is not None:
            await prepared.wait()
        return empty()

    async def delete_topic(self) -> Response:
        """POST /topic/delete, with its channels; their consumers are closed."""
        await self._broker.delete_topic(self._existing_topic().name).wait()
        return empty()

    async def empty_topic(self) -> Response:
        """POST /topic/empty: what waits at the topic, not at its channels."""
        await self.topic_named(valid_topic_name(query())).empty().wait()
        return empty()

    async def pause_topic(self) -> Response:
        """POST /topic/pause."""
        self._existing_topic().pause()
        await self._broker.save_metadata()
        return empty()

    async def unpause_topic(self) -> Response:
        """POST /topic/unpause."""
        self._existing_topic().unpause()
        await self._broker.save_metadata()
        return empty()

    async def create_channel(self) -> Response:
        """POST /channel/create; the topic must exist."""
        topic, name = self._topic_and_channel_name()
        topic.channel(name)
        return empty()

    async def delete_channel(self) -> Response:
        """POST /channel/delete; its consumers are closed."""
        channel = self.existing_channel()
        await channel.topic.delete_channel(channel.name).wait()
        return empty()

    async def empty_channel(self) -> Response:
        """POST /channel/empty: what waits, is in flight or deferred."""
        await self.existing_channel().empty().wait()
        return empty()

    async def pause_channel(self) -> Response:
        """POST /channel/pause."""
        answer = self._to_channel(Channel.pause)
        await self._broker.save_metadata()
        return answer

    async def unpause_channel(self) -> Response:
        """POST /channel/unpause."""
        answer = self._to_channel(Channel.unpause)
        await self._broker.save_metadata()
        return answer

    def _to_channel(self, act: Callable[[Channel], None]) -> Response:
        act(self.existing_channel())
        return empty()
