"""The channel whose position follows a query, so that nsqd shows its depth and lag.

nsqd keeps what the channel has not passed. So retention can't remove what the query still needs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pipelines.errors import TopicLogError
from pipelines.topiclog.nsqds import Nsqds
from pipelines.topiclog.places import LogName, Place

__all__ = ["FollowingChannel"]

log = logging.getLogger("pipelines.topiclog")


class FollowingChannel:
    """A channel of the same name in all logs.

    Attributes:
        name: of the channel; empty for none.
    """

    def __init__(self, name: str, nsqds: Nsqds) -> None:
        self.name = name
        self._nsqds = nsqds
        self._sequences: dict[LogName, int] = {}

    def __repr__(self) -> str:
        return f"<FollowingChannel {self.name}>"

    async def follow(self, places: Mapping[LogName, Place]) -> None:
        """Move the channel to these places where it is elsewhere.

        An nsqd that does not answer gets the position at a later call.

        Raises:
            TopicLogError: nsqd refuses, or the channel has consumers: it would take their messages.
        """
        if not self.name:
            return

        async def move(name: LogName) -> int:
            if name not in self._sequences:
                await self._check(name)
            sequence = places[name].sequence
            await self._nsqds.seek_channel(name, self.name, sequence)
            return sequence

        due = [name for name in places if self._sequences.get(name) != places[name].sequence]
        self._sequences |= await self._nsqds.ask_all(due, move)
        for reason in self._nsqds.away.values():
            log.warning("channel %s keeps its position: %s", self.name, reason)

    async def _check(self, name: LogName) -> None:
        if count := await self._nsqds.count_clients(name, self.name):
            raise TopicLogError(
                f"channel {self.name} of {name} has {count} consumers; with mode=log the channel "
                "belongs to the query alone: choose another name"
            )
