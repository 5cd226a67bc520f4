"""The stop of the broker: messages in memory are saved to disk. Spec: nsqd-internals, section 6."""

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

__all__ = ["retry_until_saved", "save_all"]

log = logging.getLogger("trionsq")

# The disk may get room meanwhile: deletions are under way, and operators act.
_RETRY_FOR_S: Final = 5.0
_RETRY_S: Final = 0.25
# A disk that hangs must not hang the stop.
_MAX_SAVE_S: Final = 60.0


@dataclass(slots=True)
class _UnsavedQueue:
    """The messages of a topic or channel on their way to disk."""

    name: str
    save: Callable[[], None]
    count_in_memory: Callable[[], int]
    backend: Backend
    error: str = "the disk did not answer in time"
    is_closed: bool = False

    def save_memory(self) -> bool:
        """Write all messages in memory to the backend; return whether it took them."""
        try:
            self.save()
        except BackendError as error:
            self.error = str(error)
            return False
        except Exception as error:
            # The other queues are still saved.
            self._note_defect(error)
            return False
        return True

    def _note_defect(self, error: Exception) -> None:
        text = f"a defect of nsqd: {type(error).__name__}: {error}"
        if text != self.error:
            log.error("NSQ: saving %s failed by a defect of nsqd", self.name, exc_info=error)
        self.error = text

    def loss_text(self) -> str | None:
        """Return how many messages are not safe on disk, and why; None if all are."""
        in_memory, on_disk = self.count_in_memory(), 0 if self.is_closed else self.backend.depth
        parts = [f"{in_memory} messages only in memory"] if in_memory else []
        if on_disk:
            parts.append(f"{on_disk} messages on disk that may not be durable")
        return f"{self.name}: {', '.join(parts)}: {self.error}" if parts else None

    def close(self) -> None:
        """Make the messages on disk durable."""
        try:
            self.backend.close()
        except BackendError as error:
            self.error = str(error)
        except Exception as error:
            self._note_defect(error)
        else:
            self.is_closed = True


async def retry_until_saved(save: Callable[[], Awaitable[bool]]) -> bool:
    """Call ``save`` until it returns true, for some seconds; return whether it did."""
    with trio.move_on_after(_MAX_SAVE_S):
        deadline_s = trio.current_time() + _RETRY_FOR_S
        while not await save():
            if trio.current_time() >= deadline_s:
                return False
            await trio.sleep(_RETRY_S)
        return True
    return False


async def save_all(topics: Iterable[Topic], folder: DataFolder, set_back_ns: int = 0) -> list[str]:
    """Write the messages of all topics and channels to disk, and close the queues.

    Call it after the tasks of topics and channels have ended. Saves as much as possible; returns a
    line for each queue that is not completely saved. ``set_back_ns``: see `ChannelState.save`.
    """
    folder.stopping = True
    queues = [queue for topic in topics for queue in _queues(topic, set_back_ns)]
    with trio.move_on_after(_MAX_SAVE_S):
        deadline_s = trio.current_time() + _RETRY_FOR_S
        unsaved = await _save_once(queues, folder)
        while (unsaved or _has_failed_queue(folder)) and trio.current_time() < deadline_s:
            await trio.sleep(_RETRY_S)
            folder.retry()
            await folder.background.wait_idle()
            unsaved = await _save_once(unsaved, folder)
        for queue in queues:
            folder.background.submit(queue.close, lambda error: None)
        await folder.background.wait_idle()
    return [line for queue in queues if (line := queue.loss_text())]


def _queues(topic: Topic, set_back_ns: int) -> list[_UnsavedQueue]:
    """Return the queues of a topic and its channels, without ephemeral ones."""
    try:
        topic.mark_exiting()
    except Exception:
        # Messages that have reached the queues are saved all the same.
        log.exception("NSQ: ending TOPIC(%s) failed by a defect of nsqd", topic.name)
    queues = []
    if not topic.is_ephemeral:
        queues.append(_queue(topic.name, topic.core, topic.core.save))
    for channel in topic.channels.values():
        if not channel.is_ephemeral:
            save = partial(channel.core.save, set_back_ns)
            queues.append(_queue(f"{topic.name}:{channel.name}", channel.core, save))
    return queues


def _queue(name: str, core: TopicState | ChannelState, save: Callable[[], None]) -> _UnsavedQueue:
    return _UnsavedQueue(name, save, partial(_held, core), core.store.backend)


def _held(core: TopicState | ChannelState) -> int:
    return core.held


async def _save_once(queues: list[_UnsavedQueue], folder: DataFolder) -> list[_UnsavedQueue]:
    """Write messages in memory to disk; return the queues of which some remain in memory."""
    unsaved = []
    for queue in queues:
        if not queue.save_memory():
            unsaved.append(queue)
        await trio.lowlevel.checkpoint()  # lets a second signal end nsqd
    folder.sync_all()
    await folder.background.wait_idle()
    return unsaved


def _has_failed_queue(folder: DataFolder) -> bool:
    """Return whether an error keeps a queue from being durable."""
    return any(not isinstance(key, str) for key in folder.faults)
