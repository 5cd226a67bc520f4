"""Recorded data folders, and a reader of disk queue files that owes nothing to the broker.

Spec: README (diskqueue); nsqd-internals, sections 5 (metadata) and 7 (disk queue files).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.golden.transcripts import HERE, latin1

CASES_DIRECTORY = HERE / "data" / "diskqueue"
QUEUE_FILES = "*.diskqueue.*"
DEFAULT_MAX_MSG_SIZE = 1024 * 1024

_QUEUE_FILE = re.compile(r"(?P<queue>.+)\.diskqueue\.(?:meta|\d{6,})\.dat(?P<bad>\.bad)?")
_MESSAGE = struct.Struct(">qH16s")
_SIZE = struct.Struct(">i")


class Stored(NamedTuple):
    """A message as files and consumers show it."""

    timestamp_ns: int
    attempts: int
    message_id: bytes
    body: bytes


class Meta(NamedTuple):
    """What a queue's meta file says; positions are bytes in the file of that number."""

    depth: int
    read_file: int
    read_position: int
    write_file: int
    write_position: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one subscription to a recorded folder brings."""

    topic: str
    channel: str
    messages: tuple[Stored, ...]


@dataclass(frozen=True, slots=True)
class FolderCase:
    """A recorded data folder, and what becomes of it.

    ``queues`` has, by queue name, the meta text and the unread records as far as the meta
    describes them; ``metadata`` is nsqd.dat less its version; ``files_after_stop``
    has a meta file's text or a data file's size.
    """

    name: str
    args: tuple[str, ...]
    metadata: dict[str, Any]
    queues: dict[str, tuple[str, tuple[Stored, ...]]]
    topics: list[dict[str, Any]]
    delivered: tuple[Delivery, ...]
    files_after_stop: dict[str, str | int]

    @property
    def data(self) -> Path:
        """The folder as recorded; to be copied before use."""
        return CASES_DIRECTORY / self.name / "data"

    @property
    def max_msg_size(self) -> int:
        """The bound of a record's body in bytes, beyond which it is damaged."""
        flag = "--max-msg-size="
        sizes = [int(arg.removeprefix(flag)) for arg in self.args if arg.startswith(flag)]
        return sizes[0] if sizes else DEFAULT_MAX_MSG_SIZE

    def known_channels(self, topic: str) -> set[str]:
        """Names of the topic's channels before anybody subscribes."""
        channels: set[str] = set()
        for entry in self.metadata["topics"]:
            if entry["name"] == topic:
                channels |= {channel["name"] for channel in entry["channels"] or []}
        return channels

    def unread(self) -> dict[str, tuple[Stored, ...]]:
        """What each queue holds until it is consumed, records beyond a stale meta included."""
        records = {name: stored for name, (_, stored) in self.queues.items()}
        for delivery in self.delivered:
            known = delivery.channel in self.known_channels(delivery.topic)
            queue = f"{delivery.topic}:{delivery.channel}" if known else delivery.topic
            records[queue] = tuple(
                message._replace(attempts=message.attempts - 1) for message in delivery.messages
            )
        return records


def folder_cases() -> list[FolderCase]:
    """All recorded folders."""
    return [_load(path) for path in sorted(CASES_DIRECTORY.glob("*/expected.json"))]


def _load(path: Path) -> FolderCase:
    raw = json.loads(path.read_text(encoding="utf-8"))
    after = raw["after_start"]
    return FolderCase(
        name=path.parent.name,
        args=tuple(raw["args"]),
        metadata={"topics": raw["nsqd_dat"]["topics"]},
        queues={
            name: (queue["meta"], _stored(queue["messages"]))
            for name, queue in raw["queues"].items()
        },
        topics=after["topics"],
        delivered=tuple(
            Delivery(entry["topic"], entry["channel"], _stored(entry["messages"]))
            for entry in after["delivered"]
        ),
        files_after_stop=after["files_after_stop"],
    )


def _stored(messages: list[dict[str, Any]]) -> tuple[Stored, ...]:
    return tuple(
        Stored(raw["timestamp"], raw["attempts"], latin1(raw["id"]), latin1(raw["body"]))
        for raw in messages
    )


def queue_of_file(name: str) -> str | None:
    """The queue whose file this is, set aside or not; None if nsqd has no such file."""
    match = _QUEUE_FILE.fullmatch(name)
    return match["queue"] if match else None


def read_meta(folder: Path, queue: str) -> Meta:
    """The queue's meta file; raises FileNotFoundError or ValueError."""
    text = (folder / f"{queue}.diskqueue.meta.dat").read_text()
    match = re.fullmatch(r"(\d+)\n(\d+),(\d+)\n(\d+),(\d+)\n", text)
    if match is None:
        raise ValueError(f"{queue}: meta {text!r}")
    return Meta(*map(int, match.groups()))


def read_queue(folder: Path, queue: str, max_msg_size: int) -> tuple[Stored, ...]:
    """Unread records in order, as a start after any stop finds them.

    A file ends at its real size; what follows a damaged record in its file is lost.
    """
    meta = read_meta(folder, queue)
    records: list[Stored] = []
    for number in range(meta.read_file, meta.write_file + 1):
        path = folder / f"{queue}.diskqueue.{number:06d}.dat"
        data = path.read_bytes() if path.exists() else b""
        start = meta.read_position if number == meta.read_file else 0
        records += _records(data[start:], max_msg_size)
    return tuple(records)


def _records(data: bytes, max_msg_size: int) -> Iterator[Stored]:
    position = 0
    while len(data) - position >= _SIZE.size:
        (length,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size
        is_valid = _MESSAGE.size <= length <= max_msg_size + _MESSAGE.size
        if not is_valid or position + length > len(data):
            return
        timestamp_ns, attempts, message_id = _MESSAGE.unpack_from(data, position)
        body = data[position + _MESSAGE.size : position + length]
        yield Stored(timestamp_ns, attempts, message_id, body)
        position += length
