"""The tool to_nsq: publishes each record of standard input as a message.

Records are published in order, many at a time, and every nsqd confirms each. After SIGINT or
SIGTERM the tool reads to the end of the present record, waits until everything is published and
confirmed, and ends. A second signal ends it at once.

Spec: tools, to_nsq. Unlike the original, a last record without a delimiter is published whole.
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
from trionsq.client.reply import Reply
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
_READ_BYTES: Final = 128 * 1024
_MAX_GROUP_COUNT: Final = 500
# Less than the client library accepts unsent (1 MiB), so that a failure is noticed in time.
_MAX_GROUP_BYTES: Final = 256 * 1024
_MAX_RECORD_BYTES: Final = 256 * 1024 * 1024
# Time to read the rest of a record after a signal.
_LAST_RECORD_S: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToNsqOptions:
    """The flags."""

    topic: str = option("topic", "", STRING, "topic to publish to")
    nsqd_tcp_address: tuple[str, ...] = option(
        "nsqd-tcp-address", (), STRINGS, "host:port of an nsqd; each gets every message"
    )
    delimiter: str = option(
        "delimiter", "\n", dataclasses.replace(STRING, show=repr), "the byte between two records"
    )
    rate: int = option("rate", 0, INT, "maximum messages per second; 0: no limit")
    producer_opt: tuple[str, ...] = option(
        "producer-opt", (), STRINGS, "option of the client library: name,value"
    )


class RecordSplitter:
    """Splits a stream of bytes into records, and drops empty ones."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    @property
    def has_rest(self) -> bool:
        """Whether the last record is incomplete so far."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records that end in *data*. Raises ToolError if one is longer than 256 MiB."""
        first, *others = data.split(self._delimiter)
        if first:
            self._rest.append(first)
            self._rest_bytes += len(first)
            if self._rest_bytes > _MAX_RECORD_BYTES:
                raise ToolError(f"a record of more than {_MAX_RECORD_BYTES} bytes")
        if not others:
            return []
        records = [self.pop_rest(), *others[:-1]]
        if others[-1]:
            self._rest, self._rest_bytes = [others[-1]], len(others[-1])
        return [record for record in records if record]

    def pop_rest(self) -> bytes:
        """Return the incomplete record, as if it had ended; empty if there is none."""
        rest = b"".join(self._rest)
        self._rest, self._rest_bytes = [], 0
        return rest


def groups(records: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split *records* into groups of limited count and size. A large record stands alone."""
    first = size = 0
    for index, record in enumerate(records):
        size += len(record)
        if index > first and (size > _MAX_GROUP_BYTES or index - first == _MAX_GROUP_COUNT):
            yield records[first:index]
            first, size = index, len(record)
    if records:
        yield records[first:]


_Group = tuple[int, list[Reply[bytes]]]


class _Publishing:
    """One run of the tool. Tasks: one reads, one waits for confirmations, one for signals."""

    def __init__(self, options: ToNsqOptions, config: Config) -> None:
        self._options = options
        self._config = config
        self._input = InputFd(0)
        self._records = RecordSplitter(os.fsencode(options.delimiter))
        self._progress = Progress("published")
        self._is_stopping = False
        self._wait_scope = trio.CancelScope()
        self._next_s = 0.0

    async def run(self) -> int:
        """Publish everything, and return the exit code. Raises ToolError."""
        async with AsyncExitStack() as stack:
            producers = []
            for address in dict.fromkeys(self._options.nsqd_tcp_address):
                producer = Producer(address, config=self._config)
                producers.append(await stack.enter_async_context(producer))
            async with trio.open_nursery() as nursery:
                await nursery.start(on_signal, self._stop)
                if not os.isatty(0):
                    nursery.start_soon(self._progress.run)
                unconfirmed, groups_to_confirm = trio.open_memory_channel[_Group](2)
                nursery.start_soon(self._read_all, producers, unconfirmed)
                await self._confirm_all(groups_to_confirm)
                nursery.cancel_scope.cancel()
        return 0

    def _stop(self, _signum: int) -> None:
        self._is_stopping = True
        self._wait_scope.cancel()

    async def _read_all(
        self, producers: list[Producer], unconfirmed: trio.MemorySendChannel[_Group]
    ) -> None:
        with unconfirmed:  # not `async with`: its checkpoint could hide an error
            while data := await self._read():
                await self._publish(self._records.feed(data), producers, unconfirmed)
            if self._is_stopping:
                await self._publish(await self._read_rest_of_record(), producers, unconfirmed)
            if rest := self._records.pop_rest():
                await self._publish([rest], producers, unconfirmed)

    async def _read(self) -> bytes:
        """Read what is available; empty at the end of the input and after a signal."""
        data = b""
        if not self._is_stopping:
            with trio.CancelScope() as self._wait_scope:
                data = await _checked_read(self._input, _READ_BYTES)
        return data

    async def _read_rest_of_record(self) -> list[bytes]:
        """Read to the end of the present record, byte by byte, so as not to read further."""
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
        unconfirmed: trio.MemorySendChannel[_Group],
    ) -> None:
        is_limited = self._options.rate > 0
        for group in ([record] for record in records) if is_limited else groups(records):
            if is_limited:
                await self._wait_for_turn()
            topic = self._options.topic
            try:
                replies = [
                    await producer.begin_publish(topic, record)
                    for record in group
                    for producer in producers
                ]
            except (ClientError, ValueError) as error:
                raise self._publish_error(error) from error
            await unconfirmed.send((len(group), replies))

    async def _wait_for_turn(self) -> None:
        """Wait until --rate allows the next message. After a signal, do not wait."""
        if not self._is_stopping:
            with trio.CancelScope() as self._wait_scope:
                await trio.sleep_until(self._next_s)
        self._next_s = max(trio.current_time(), self._next_s) + 1 / self._options.rate

    async def _confirm_all(self, unconfirmed: trio.MemoryReceiveChannel[_Group]) -> None:
        async for count, replies in unconfirmed:
            try:
                for reply in replies:
                    await reply.wait()
            except (ClientError, ProtocolError) as error:
                raise self._publish_error(error) from error
            self._progress.count += count

    def _publish_error(self, error: Exception) -> ToolError:
        count = self._progress.count
        return ToolError(f"failed to publish - {error} (confirmed before: {count} or more)")


async def _checked_read(source: InputFd, max_bytes: int) -> bytes:
    try:
        return await source.read(max_bytes)
    except OSError as error:
        raise ToolError(f"failed to read from stdin - {error.strerror}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help, 2 after a usage error, 1 after other refusals.
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
