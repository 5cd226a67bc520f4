"""The data path's files beside messages: ``nsqd.dat`` (topics and channels) and ``trionsq.dat``.

``nsqd.dat`` is the original's: either nsqd reads the other's file. Spec: nsqd-internals, section 5.
``trionsq.dat`` is ours; the original ignores it. It has the time up to which message ids may be in
use, ``{"format":1,"ids_until_ns":N}``, so that no id is repeated after the clock was set back.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from trionsq import NSQ_VERSION
from trionsq.disk import Disk, read_file, replace_file
from trionsq.storage.folder import reason_of
from trionsq.wire.gojson import JsonObject, decode, read_array, read_bool, read_object, read_string
from trionsq.wire.names import is_ephemeral, is_valid_name, quote

__all__ = [
    "ID_RESERVE_FILE",
    "METADATA_FILE",
    "ChannelRecord",
    "IdReserve",
    "MetadataError",
    "TopicRecord",
    "encode_metadata",
    "load_metadata",
    "remove_drafts",
    "save_metadata",
]

METADATA_FILE: Final = "nsqd.dat"
ID_RESERVE_FILE: Final = "trionsq.dat"
_ID_RESERVE_FORMAT: Final = 1

_NAME: Final = r"[.a-zA-Z0-9_-]+(?:#ephemeral)?"
_QUEUE: Final = rf"{_NAME}(?::{_NAME})?"
_DRAFT: Final = re.compile(
    rf"(?:nsqd\.dat|trionsq\.dat|trionsq\.policies\.dat|{_QUEUE}\.diskqueue\.(?:meta|deferred|[0-9]{{6,}})\.dat)\.[0-9]+\.tmp"
)

# Characters written at once.
_PIECE_LENGTH: Final = 64 * 1024

log = logging.getLogger("trionsq")


class MetadataError(Exception):
    """``nsqd.dat`` is unusable; the text is that of nsqd's FATAL line."""


@dataclass(frozen=True, slots=True)
class ChannelRecord:
    """A channel in ``nsqd.dat``."""

    name: str
    paused: bool = False


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic in ``nsqd.dat``, with its channels."""

    name: str
    paused: bool = False
    channels: tuple[ChannelRecord, ...] = ()


def load_metadata(disk: Disk) -> list[TopicRecord]:
    """Return the topics of the file, each name once; none without a file.

    Entries with invalid names are skipped with a warning. An entry with a repeated name adds its
    channels to the first entry, and pauses the topic if it is paused itself. Ephemeral names are
    accepted.

    Raises:
        MetadataError: the file cannot be read, or its content is not valid.
    """
    path = f"{disk.path}/{METADATA_FILE}"
    try:
        data = read_file(disk, METADATA_FILE)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MetadataError(
            "failed to load metadata - "
            f"failed to read metadata from {path} - open {path}: {reason_of(error)}"
        ) from error
    try:
        return _topics(decode(data))
    except ValueError as error:
        raise MetadataError(
            f"failed to load metadata - failed to parse metadata in {path} - {error}"
        ) from error


def save_metadata(disk: Disk, topics: Iterable[TopicRecord]) -> None:
    """Replace the file, without ephemeral topics and channels. Blocks for fsyncs.

    Raises:
        OSError: the file may have its old content, or the new one may not be durable.
    """
    replace_file(disk, METADATA_FILE, encode_metadata(topics))


def encode_metadata(topics: Iterable[TopicRecord]) -> Iterator[bytes]:
    """Yield the content of the file in pieces.

    Encoding it in one call would stop all other threads, and the event loop with them.
    """
    topics = [topic for topic in topics if not is_ephemeral(topic.name)]
    text = '{"topics":' + ("[" if topics else "null")
    for index, topic in enumerate(topics):
        if len(text) >= _PIECE_LENGTH:
            yield text.encode()
            text = ""
        text += ("," if index else "") + _encode_entry(topic)[:-1] + ',"channels":'
        channels = [channel for channel in topic.channels if not is_ephemeral(channel.name)]
        text += "[" if channels else "null"
        for channel_index, channel in enumerate(channels):
            text += ("," if channel_index else "") + _encode_entry(channel)
            if len(text) >= _PIECE_LENGTH:
                yield text.encode()
                text = ""
        text += "]}" if channels else "}"
    text += ("]" if topics else "") + f',"version":"{NSQ_VERSION}"}}'
    yield text.encode()


def _encode_entry(entry: TopicRecord | ChannelRecord) -> str:
    return json.dumps({"name": entry.name, "paused": entry.paused}, separators=(",", ":"))


def remove_drafts(disk: Disk) -> None:
    """Delete the drafts that a crash left when files were being replaced.

    A draft that cannot be deleted does no harm: it is only logged.

    Raises:
        OSError: the folder cannot be listed.
    """
    for name in disk.names():
        if _DRAFT.fullmatch(name):
            try:
                disk.unlink(name)
            except OSError as error:
                log.warning("a draft cannot be deleted: %s", error)


def _topics(content: object) -> list[TopicRecord]:
    # Names in the order of their first entry.
    paused: dict[str, bool] = {}
    channels: dict[str, dict[str, bool]] = {}
    for topic in read_array(read_object(content, "metadata").get("topics"), "topics"):
        fields = read_object(topic, "topic")
        name = read_string(fields.get("name"), "name of a topic")
        is_paused = read_bool(fields.get("paused"), "paused of a topic")
        entries = _channels(fields)
        if not _is_usable(name, "topic"):
            continue
        paused[name] = paused.get(name, False) or is_paused
        topic_channels = channels.setdefault(name, {})
        for channel, is_channel_paused in entries:
            if _is_usable(channel, "channel"):
                was_paused = topic_channels.get(channel, False)
                topic_channels[channel] = was_paused or is_channel_paused
    return [
        TopicRecord(name, paused[name], tuple(ChannelRecord(*item) for item in items.items()))
        for name, items in channels.items()
    ]


def _channels(topic: JsonObject) -> list[tuple[str, bool]]:
    entries = []
    for channel in read_array(topic.get("channels"), "channels"):
        fields = read_object(channel, "channel")
        name = read_string(fields.get("name"), "name of a channel")
        entries.append((name, read_bool(fields.get("paused"), "paused of a channel")))
    return entries


def _is_usable(name: str, kind: str) -> bool:
    encoded = name.encode()
    if is_valid_name(encoded):
        return True
    log.warning("skipping creation of invalid %s %s", kind, quote(encoded)[1:-1].decode())
    return False


class IdReserve:
    """The time in ``trionsq.dat``, in nanoseconds since the epoch (wall clock)."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def load(self) -> int:
        """Return the time from which on no id is in use; 0 without a readable file."""
        try:
            return _decode_ids_until_ns(read_file(self._disk, ID_RESERVE_FILE))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, RecursionError) as error:
            log.warning(
                "message ids may repeat if the clock was set back: %s/%s: %s",
                self._disk.path,
                ID_RESERVE_FILE,
                error,
            )
            return 0

    def save(self, until_ns: int) -> None:
        """Store the time durably.

        Raises:
            OSError: the file may have the earlier time.
        """
        text = f'{{"format":{_ID_RESERVE_FORMAT},"ids_until_ns":{until_ns}}}'
        replace_file(self._disk, ID_RESERVE_FILE, text.encode())


def _decode_ids_until_ns(data: bytes) -> int:
    content: object = json.loads(data)
    if not isinstance(content, dict) or content.get("format") != _ID_RESERVE_FORMAT:
        raise ValueError(f"the format is not {_ID_RESERVE_FORMAT}")
    until_ns: object = content.get("ids_until_ns")
    if type(until_ns) is not int or until_ns < 0:
        raise ValueError("ids_until_ns is not a time")
    return until_ns
