"""The tool nsq_tail: writes messages to standard output.

A message is finished once it is written. When the tool ends, by a signal, by -n or because the
reader of a pipe has gone, messages that were received but not written are returned to nsqd.

Spec: tools, nsq_tail. Unlike the original, the tool finishes the written messages before it ends,
and gives up no message after five attempts: that would finish it unwritten. With --from it reads
logs, without a channel (see `trionsq.tools.fromlog`).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from trionsq.client import Batch, Config, Consumer
from trionsq.options import BOOL, INT, STRING, STRINGS, option
from trionsq.tools.common import (
    ToolError,
    configure_log,
    consumer_config,
    die,
    on_signal,
    one_kind_of_address,
    read_options,
    run_tool,
)
from trionsq.tools.fromlog import FromLogOptions, check_addresses, read_logs
from trionsq.tools.stdio import OutputFd, Progress

_TOOL: Final = "nsq_tail"
# Time to write the rest of a line after a signal.
_LAST_LINE_S: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NsqTailOptions(FromLogOptions):
    """The flags."""

    topic: tuple[str, ...] = option("topic", (), STRINGS, "topic to read")
    channel: str = option(
        "channel", "", STRING, "channel to read from; default: a new ephemeral one"
    )
    n: int = option("n", 0, INT, "end after this many messages of a topic; 0: never")
    print_topic: bool = option("print-topic", False, BOOL, "begin each line with the topic")


class _Tail:
    """One run of the tool. Tasks: one for each topic, signals, progress."""

    def __init__(self, options: NsqTailOptions, config: Config) -> None:
        self._options = options
        self._config = config
        self._channel = options.channel or f"tail{random.randrange(999999):06d}#ephemeral"
        self._output = OutputFd(1)
        self._turn = trio.Lock()
        self._progress = Progress("written")

    async def run(self) -> int:
        """Write until a signal or -n, and return the exit code. Raises ToolError."""
        async with trio.open_nursery() as nursery:
            scope = nursery.cancel_scope
            await nursery.start(on_signal, lambda _: scope.cancel())
            if not os.isatty(1):
                nursery.start_soon(self._progress.run)
            async with trio.open_nursery() as topics:
                for topic in dict.fromkeys(self._options.topic):
                    tail = self._tail_log if self._options.begin else self._tail
                    topics.start_soon(tail, topic, scope)
            scope.cancel()
        return 0

    async def _tail_log(self, topic: str, scope: trio.CancelScope) -> None:
        prefix = self._prefix(topic)
        remaining = self._options.n

        async def write(bodies: list[bytes]) -> None:
            nonlocal remaining
            bodies = bodies[: remaining or len(bodies)]
            await self._write_lines(bodies, prefix)
            if remaining and not (remaining := remaining - len(bodies)):
                scope.cancel()
                await trio.lowlevel.checkpoint()

        await read_logs(topic, self._options, self._config, write)

    async def _tail(self, topic: str, scope: trio.CancelScope) -> None:
        configure_log().info("Adding consumer for topic: %s", topic)
        prefix = self._prefix(topic)
        remaining = self._options.n
        async with self._consumer(topic) as consumer:
            async for batch in consumer.batches():
                count = min(remaining or len(batch), len(batch))
                await self._write(batch, count, prefix)
                if remaining and not (remaining := remaining - count):
                    scope.cancel()
                    return

    def _prefix(self, topic: str) -> bytes:
        return f"{topic} | ".encode() if self._options.print_topic else b""

    def _consumer(self, topic: str) -> Consumer:
        try:
            return Consumer(
                topic,
                self._channel,
                nsqd_tcp_addresses=dict.fromkeys(self._options.nsqd_tcp_address),
                lookupd_http_addresses=self._options.lookupd_http_address,
                config=self._config,
            )
        except ValueError as error:
            raise ToolError(str(error)) from error

    async def _write(self, batch: Batch, count: int, prefix: bytes) -> None:
        """Write the first *count* messages and finish those that were written completely."""
        await self._write_lines(batch.bodies[:count], prefix, lambda lines: _finish(batch, lines))

    async def _write_lines(
        self,
        bodies: Sequence[bytes],
        prefix: bytes,
        written: Callable[[int], None] = lambda lines: None,
    ) -> None:
        """Write a line for each message; *written* gets the number of those that are complete."""
        lines = [b"%b%b\n" % (prefix, body) for body in bodies]
        ends = list(itertools.accumulate(map(len, lines)))
        data = b"".join(lines)
        async with self._turn:
            start = self._output.written_bytes
            try:
                await self._output.write_all(data)
            except trio.Cancelled:
                await self._finish_line(data, ends, self._output.written_bytes - start)
                raise
            except OSError as error:
                raise ToolError(
                    f"ERROR: failed to write to os.Stdout - {error.strerror}"
                ) from error
            finally:
                written(bisect_right(ends, self._output.written_bytes - start))
        self._progress.count += len(bodies)

    async def _finish_line(self, data: bytes, ends: list[int], written_bytes: int) -> None:
        """Write the rest of a partly written line, if the reader takes it in time."""
        lines = bisect_right(ends, written_bytes)
        if lines == len(ends) or written_bytes == (ends[lines - 1] if lines else 0):
            return
        with trio.move_on_after(_LAST_LINE_S, shield=True), suppress(OSError):
            await self._output.write_all(data[written_bytes : ends[lines]])


def _finish(batch: Batch, count: int) -> None:
    if count == len(batch):
        batch.finish()
    else:
        for index in range(count):
            batch[index].finish()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after a usage error, 1 after other refusals.
    """
    options, _ = read_options(NsqTailOptions, _TOOL, sys.argv[1:] if argv is None else argv)
    if not options.topic:
        die("--topic required")
    if not check_addresses(options):
        one_kind_of_address(options.nsqd_tcp_address, options.lookupd_http_address)
    max_in_flight = options.max_in_flight
    if options.n > 0:
        max_in_flight = min(options.n, max_in_flight)
    config = consumer_config(options, _TOOL, max_in_flight)
    configure_log()
    return run_tool(_Tail(options, config).run)


if __name__ == "__main__":
    raise SystemExit(main())
