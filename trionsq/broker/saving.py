"""The end of the broker: what is in memory goes to disk. Spec: nsqd-internals, section 6."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from trionsq.broker.topic import Topic
from trionsq.core.channel import ChannelState
from trionsq.core.queue import Backend, BackendError
from trionsq.core.topic import TopicState
from trionsq.storage.folder import DataFolder

__all__ = ["keep_trying", "save_all"]

log = logging.getLogger("trionsq")

# A queue that the disk refuses is tried again so long: room may yet be made.
_RETRY_FOR_S: Final = 5.0
_RETRY_S: Final = 0.25
# All of it takes no longer; a disk that hangs must not hang the stop.
_LIMIT_S: Final = 60.0


@dataclass(slots=True)
class _Queue:
    """A topic's or channel's messages on their way to disk."""

    name: str
    move: Callable[[], None]
    left: Callable[[], int]
    backend: Backend
    error: str = "the disk did not answer in time"
    closed: bool = False

    def empty_memory(self) -> bool:
        """Write what is in memory; whether all of it was taken."""
        try:
            self.move()
        except BackendError as error:
            self.error = str(error)
            return False
        except Exception as error:
            # It costs this queue and no other.
            self._note_defect(error)
            return False
        return True

    def _note_defect(self, error: Exception) -> None:
        text = f"a defect of nsqd: {type(error).__name__}: {error}"
        if text != self.error:
            log.error("NSQ: saving %s failed by a defect", self.name, exc_info=error)
        self.error = text

    def unsaved(self) -> str | None:
        """What is not safe on disk, and why; None if nothing is missing."""
        left, on_disk = self.left(), 0 if self.closed else self.backend.depth
        parts = [f"{left} messages only in memory"] if left else []
        if on_disk:
            parts.append(f"{on_disk} messages on disk that may not be durable")
        return f"{self.name}: {', '.join(parts)}: {self.error}" if parts else None

    def close(self) -> None:
        """Make it durable."""
        try:
            self.backend.close()
        except BackendError as error:
            self.error = str(error)
        except Exception as error:
            self._note_defect(error)
        else:
            self.closed = True


async def keep_trying(save: Callable[[], Awaitable[bool]]) -> bool:
    """Call ``save`` until it says that it went well, for some seconds; whether it did."""
    with trio.move_on_after(_LIMIT_S):
        deadline_s = trio.current_time() + _RETRY_FOR_S
        while not await save():
            if trio.current_time() >= deadline_s:
                return False
            await trio.sleep(_RETRY_S)
        return True
    return False


async def save_all(topics: Iterable[Topic], folder: DataFolder) -> list[str]:
    """Write the messages of all topics and channels to disk, and close the queues.

    The tasks of topics and channels have ended. Returns a line for each queue that could not be
    saved whole; what could be is.
    """
    folder.stopping = True
    queues = [queue for topic in topics for queue in _queues(topic)]
    with trio.move_on_after(_LIMIT_S):
        deadline_s = trio.current_time() + _RETRY_FOR_S
        full = await _save_once(queues, folder)
        while (full or _has_faults(folder)) and trio.current_time() < deadline_s:
            await trio.sleep(_RETRY_S)
            folder.try_again()
            await folder.background.wait_idle()
            full = await _save_once(full, folder)
        for queue in queues:
            folder.background.submit(queue.close, lambda error: None)
        await folder.background.wait_idle()
    return [line for queue in queues if (line := queue.unsaved())]


def _queues(topic: Topic) -> list[_Queue]:
    """Of what is to be saved: nothing that is ephemeral."""
    try:
        topic.mark_exiting()
    except Exception:
        # What has reached the queues is saved all the same.
        log.exception("NSQ: ending TOPIC(%s) failed by a defect", topic.name)
    cores: list[tuple[str, TopicState | ChannelState]] = []
    if not topic.is_ephemeral:
        cores.append((topic.name, topic.core))
    cores += [
        (f"{topic.name}:{channel.name}", channel.core)
        for channel in topic.channels.values()
        if not channel.is_ephemeral
    ]
    return [
        _Queue(name, core.save, partial(_held, core), core.store.backend) for name, core in cores
    ]


def _held(core: TopicState | ChannelState) -> int:
    return core.held


async def _save_once(queues: list[_Queue], folder: DataFolder) -> list[_Queue]:
    """Move what is in memory to disk; the queues of which some is left."""
    full = []
    for queue in queues:
        if not queue.empty_memory():
            full.append(queue)
        await trio.lowlevel.checkpoint()  # a second signal is heard
    folder.sync_all()
    await folder.background.wait_idle()
    return full


def _has_faults(folder: DataFolder) -> bool:
    """Whether a queue is not durable because of an error."""
    return any(not isinstance(key, str) for key in folder.faults)
