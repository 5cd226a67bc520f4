"""The command ``to_nsq``: each record of standard input becomes a message.

Records are published in order and many at a time; each is confirmed by every nsqd. SIGINT and
SIGTERM end the reading: the record that was begun is read to its end, everything read is
published and confirmed, then the tool ends. A second signal ends it at once.

Spec: tools, to_nsq. Unlike the original, the last record is published whole without a delimiter.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Final

import trio

from trionsq.client import ClientError, Config, Producer, ProtocolError
from trionsq.client.connection import Reply
from trionsq.options import INT, STRING, STRINGS, option
from trionsq.tools.common import (
    ToolError,
    client_config,
    configure_log,
    die,
    on_signal,
    read_options,
    run_tool,
)
from trionsq.tools.stdio import InputFd, Progress
from trionsq.wire.names import is_valid_name

_TOOL: Final = "to_nsq"
_READ_NBYTES: Final = 128 * 1024
_GROUP_COUNT: Final = 500
# Less than what the client library lets wait unsent, so that a failure is seen in time.
_GROUP_NBYTES: Final = 256 * 1024
_RECORD_NBYTES_MAX: Final = 256 * 1024 * 1024
# After a signal, for the rest of the record that was begun.
_LAST_RECORD_S: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToNsqOptions:
    """The flags."""

    topic: str = option("topic", "", STRING, "topic to publish to", key=None)
    nsqd_tcp_address: tuple[str, ...] = option(
        "nsqd-tcp-address", (), STRINGS, "host:port; each gets every message", key=None
    )
    delimiter: str = option(
        "delimiter",
        "\n",
        dataclasses.replace(STRING, show=repr),
        "the byte between records",
        key=None,
    )
    rate: int = option("rate", 0, INT, "messages per second at most, 0: no limit", key=None)
    producer_opt: tuple[str, ...] = option(
        "producer-opt", (), STRINGS, "name,value of the client library", key=None
    )


class RecordSplitter:
    """Takes bytes as they come and gives records; empty ones are left out."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._rest: list[bytes] = []
        self._rest_nbytes = 0

    @property
    def has_rest(self) -> bool:
        """Whether a record has begun and not ended."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records that end in *data*. Raises ToolError: one is absurdly long."""
        first, *others = data.split(self._delimiter)
        if first:
            self._rest.append(first)
            self._rest_nbytes += len(first)
            if self._rest_nbytes > _RECORD_NBYTES_MAX:
                raise ToolError(f"a record of more than {_RECORD_NBYTES_MAX} bytes")
        if not others:
            return []
        records = [self.pop_rest(), *others[:-1]]
        if others[-1]:
            self._rest, self._rest_nbytes = [others[-1]], len(others[-1])
        return [record for record in records if record]

    def pop_rest(self) -> bytes:
        """Return what has begun, as if it had ended; empty if nothing has."""
        rest = b"".join(self._rest)
        self._rest, self._rest_nbytes = [], 0
        return rest


def groups(records: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Part *records* into runs of bounded count and size; a large record is alone."""
    first = nbytes = 0
    for index, record in enumerate(records):
        nbytes += len(record)
        if index > first and (nbytes > _GROUP_NBYTES or index - first == _GROUP_COUNT):
            yield records[first:index]
            first, nbytes = index, len(record)
    if records:
        yield records[first:]


_Group = tuple[int, list[Reply[bytes]]]


class _Publishing:
    """One run of the tool. Tasks: the reader, the one that awaits confirmations, signals."""

    def __init__(self, options: ToNsqOptions, config: Config) -> None:
        self._options = options
        self._config = config
        self._input = InputFd(0)
        self._records = RecordSplitter(os.fsencode(options.delimiter))
        self._progress = Progress("published")
        self._is_stopping = False
        self._waiting = trio.CancelScope()
        self._next_s = 0.0

    async def run(self) -> int:
        """Publish all; the exit code. Raises ToolError."""
        async with AsyncExitStack() as stack:
            producers = []
            for address in dict.fromkeys(self._options.nsqd_tcp_address):
                producer = Producer(address, config=self._config)
                producers.append(await stack.enter_async_context(producer))
            async with trio.open_nursery() as nursery:
                await nursery.start(on_signal, self._stop)
                if not os.isatty(0):
                    nursery.start_soon(self._progress.run)
                begun, confirmations = trio.open_memory_channel[_Group](2)
                nursery.start_soon(self._read_all, producers, begun)
                await self._confirm_all(confirmations)
                nursery.cancel_scope.cancel()
        return 0

    def _stop(self, _signum: int) -> None:
        self._is_stopping = True
        self._waiting.cancel()

    async def _read_all(
        self, producers: list[Producer], begun: trio.MemorySendChannel[_Group]
    ) -> None:
        with begun:  # its aclose() is a checkpoint, at which an error could get lost
            while data := await self._read():
                await self._publish(self._records.feed(data), producers, begun)
            if self._is_stopping:
                await self._publish(await self._end_of_record(), producers, begun)
            if rest := self._records.pop_rest():
                await self._publish([rest], producers, begun)

    async def _read(self) -> bytes:
        """What comes next; empty at the end, or when a signal came."""
        data = b""
        if not self._is_stopping:
            with trio.CancelScope() as self._waiting:
                data = await _checked_read(self._input, _READ_NBYTES)
        return data

    async def _end_of_record(self) -> list[bytes]:
        """Read on to the end of the record that was begun, and not a byte further."""
        records: list[bytes] = []
        with trio.move_on_after(_LAST_RECORD_S):
            while self._records.has_rest:
                data = await _checked_read(self._input, 1)
                if not data:
                    break
                records += self._records.feed(data)
        return records

    async def _publish(
        self,
        records: Sequence[bytes],
        producers: list[Producer],
        begun: trio.MemorySendChannel[_Group],
    ) -> None:
        limited = self._options.rate > 0
        for group in ([record] for record in records) if limited else groups(records):
            if limited:
                await self._pace()
            topic = self._options.topic
            try:
                replies = [
                    await producer.begin_publish(topic, record)
                    for record in group
                    for producer in producers
                ]
            except (ClientError, ValueError) as error:
                raise self._failed(error) from error
            await begun.send((len(group), replies))

    async def _pace(self) -> None:
        """Wait for the next message's turn; not once a signal came."""
        if not self._is_stopping:
            with trio.CancelScope() as self._waiting:
                await trio.sleep_until(self._next_s)
        self._next_s = max(trio.current_time(), self._next_s) + 1 / self._options.rate

    async def _confirm_all(self, begun: trio.MemoryReceiveChannel[_Group]) -> None:
        async for count, replies in begun:
            try:
                for reply in replies:
                    await reply.wait()
            except (ClientError, ProtocolError) as error:
                raise self._failed(error) from error
            self._progress.count += count

    def _failed(self, error: Exception) -> ToolError:
        count = self._progress.count
        return ToolError(f"failed to publish - {error} (confirmed before: {count} or more)")


async def _checked_read(source: InputFd, nbytes_max: int) -> bytes:
    try:
        return await source.read(nbytes_max)
    except OSError as error:
        raise ToolError(f"failed to read from stdin - {error.strerror}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 2 after a usage error, 1 after a line that says what is wrong.
    """
    options, _ = read_options(ToNsqOptions, _TOOL, sys.argv[1:] if argv is None else argv)
    if len(os.fsencode(options.delimiter)) != 1:
        die("--delimiter must be a single byte")
    if not options.topic:
        die("--topic required")
    if not is_valid_name(os.fsencode(options.topic)):
        die("--topic is invalid")
    if not options.nsqd_tcp_address:
        die("--nsqd-tcp-address required")
    config = client_config(ToNsqOptions, _TOOL, "--producer-opt", options.producer_opt)
    configure_log()
    return run_tool(_Publishing(options, config).run)


if __name__ == "__main__":
    raise SystemExit(main())
