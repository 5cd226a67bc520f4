"""``make run``: a local nsqd with a producer and a consumer, so that data flows at once.

nsqd runs as a process of its own; the producer and the consumer are tasks here and speak to it
over TCP. Ctrl-C stops the tasks first, then nsqd.
"""

import dataclasses
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import trio

from trionsq.wire import commands
from trionsq.wire.client import ClientDecoder, ErrorFrame, Frame, Message, Response

TOPIC = "demo"
CHANNEL = "live"
BATCH = 100
BATCH_INTERVAL_S = 0.1
READY_COUNT = 500
REPORT_INTERVAL_S = 2.0
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 15.0
TCP_PORT, HTTP_PORT = 4150, 4151
# In the current folder: messages that wait are there again the next time.
DATA_PATH = Path("run/nsqd")

_OURS = re.compile(rb"demo (\d+) (\d+)")
_LISTENING = re.compile(r"(TCP|HTTP): listening on (\S+)")

_NEXT = """
Data flows: one task publishes to topic "{topic}", one consumes from its channel "{channel}".
Try in another terminal:
  curl -d 'hello' 'http://{http}/pub?topic={topic}'      publish; it shows up here
  curl 'http://{http}/stats?format=json&topic={topic}'   counters of topic and channel
  curl -X POST 'http://{http}/channel/pause?topic={topic}&channel={channel}'
  curl -X POST 'http://{http}/channel/unpause?topic={topic}&channel={channel}'
  .venv/bin/nsqd --help                                           all options
NSQ's clients connect to {tcp}. Messages that wait are kept in {data}/. Ctrl-C stops everything.
"""


class DemoError(Exception):
    """The demo cannot go on; ``str()`` says why in one line."""


@dataclasses.dataclass(slots=True)
class Counters:
    """What has flowed since the start; *latencies_ms* is of the last report's interval."""

    published: int = 0
    consumed: int = 0
    latencies_ms: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Addresses:
    """Where nsqd listens, as ``host:port``."""

    tcp: str
    http: str


class Connection:
    """One client connection to nsqd: commands out, frames in, heartbeats answered."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._decoder = ClientDecoder()

    async def send(self, data: bytes) -> None:
        """Write commands; cancelled half-way, the connection is of no more use."""
        await self._stream.send_all(data)

    async def frames(self) -> list[Frame]:
        """Wait for frames other than heartbeats and return all that came.

        Raises:
            DemoError: nsqd refused a command, or closed the connection.
        """
        while True:
            data = await self._stream.receive_some()
            if not data:
                raise DemoError("nsqd closed the connection")
            self._decoder.feed(data)
            frames: list[Frame] = []
            for frame in self._decoder.take():
                if isinstance(frame, ErrorFrame):
                    raise DemoError(f"nsqd refused a command: {frame.code} {frame.text!r}")
                if isinstance(frame, Response) and frame.is_heartbeat:
                    await self.send(commands.nop())
                else:
                    frames.append(frame)
            if frames:
                return frames

    async def response(self) -> bytes:
        """Wait for the answer to one command; raises DemoError like `frames`."""
        for frame in await self.frames():
            if isinstance(frame, Response):
                return frame.data
        raise DemoError("nsqd answered a command with a message")


async def connect(address: str) -> Connection:
    """Return a connection that has sent the magic."""
    host, _, port = address.rpartition(":")
    connection = Connection(await trio.open_tcp_stream(host, int(port)))
    await connection.send(commands.MAGIC_V2)
    return connection


async def produce(address: str, counters: Counters) -> None:
    """Publish a batch, wait for its OK, pause a little, for ever."""
    connection = await connect(address)
    while True:
        now_ns = time.monotonic_ns()
        numbers = range(counters.published, counters.published + BATCH)
        bodies = [b"demo %d %d" % (number, now_ns) for number in numbers]
        await connection.send(commands.publish_many(TOPIC, bodies))
        answer = await connection.response()
        if answer != b"OK":
            raise DemoError(f"nsqd answered {answer!r} to MPUB")
        counters.published += BATCH
        await trio.sleep(BATCH_INTERVAL_S)


async def consume(
    address: str,
    counters: Counters,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Subscribe, then finish each message for ever; started when the subscription stands."""
    connection = await connect(address)
    await connection.send(commands.subscribe(TOPIC, CHANNEL))
    await connection.response()
    await connection.send(commands.ready(READY_COUNT))
    task_status.started()
    while True:
        messages = [frame for frame in await connection.frames() if isinstance(frame, Message)]
        now_ns = time.monotonic_ns()
        for message in messages:
            ours = _OURS.fullmatch(message.body)
            if ours is None:
                print(f"received from elsewhere: {message.body[:200]!r}", flush=True)
            else:
                counters.latencies_ms.append((now_ns - int(ours[2])) / 1e6)
        await connection.send(b"".join(commands.finish(m.message_id) for m in messages))
        counters.consumed += len(messages)


async def report(counters: Counters) -> None:
    """Print a line of rates every few seconds."""
    before = dataclasses.replace(counters)
    while True:
        await trio.sleep(REPORT_INTERVAL_S)
        published = (counters.published - before.published) / REPORT_INTERVAL_S
        consumed = (counters.consumed - before.consumed) / REPORT_INTERVAL_S
        latencies_ms = sorted(counters.latencies_ms) or [0.0]
        print(
            f"published {counters.published:,} ({published:,.0f}/s)"
            f"  consumed {counters.consumed:,} ({consumed:,.0f}/s)"
            f"  publish to consume p50 {latencies_ms[len(latencies_ms) // 2]:.2f} ms",
            flush=True,
        )
        counters.latencies_ms.clear()
        before = dataclasses.replace(counters)


async def read_log(
    process: trio.Process, task_status: trio.TaskStatus[Addresses] = trio.TASK_STATUS_IGNORED
) -> None:
    """Pass nsqd's log lines on, and start with the addresses that they name.

    Raises:
        DemoError: nsqd ended, before or after.
    """
    assert process.stderr is not None
    found: dict[str, str] = {}
    started = False
    rest = b""
    async for chunk in process.stderr:
        *lines, rest = (rest + chunk).split(b"\n")
        for raw in lines:
            line = raw.decode(errors="replace")
            print(line, file=sys.stderr, flush=True)
            listening = _LISTENING.search(line)
            if listening and not started:
                found[listening[1]] = listening[2]
                if len(found) == 2:
                    started = True
                    task_status.started(Addresses(found["TCP"], found["HTTP"]))
    raise DemoError(f"nsqd ended with exit code {await process.wait()}")


def port_or_any(port: int) -> int:
    """Return *port* if nobody on this machine listens there, else 0 for any free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port


async def start_nsqd() -> trio.Process:
    """Start nsqd, on its usual ports if they are free."""
    command = [
        sys.executable,
        "-m",
        "trionsq.cli.nsqd",
        f"--tcp-address=127.0.0.1:{port_or_any(TCP_PORT)}",
        f"--http-address=127.0.0.1:{port_or_any(HTTP_PORT)}",
        "--broadcast-address=127.0.0.1",
        f"--data-path={DATA_PATH}",
    ]
    await trio.Path(DATA_PATH).mkdir(parents=True, exist_ok=True)
    # A process group of its own: Ctrl-C reaches us alone, and we stop nsqd last.
    return await trio.lowlevel.open_process(command, stderr=-1, process_group=0)


async def stop_nsqd(process: trio.Process) -> None:
    """Ask nsqd to stop and wait; after a deadline kill it. Shielded from cancellation."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIMEOUT_S):
        if process.poll() is None:
            process.terminate()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_on_the_end, process)
            await process.wait()
    if process.poll() is None:
        process.kill()
        print(f"nsqd did not stop within {STOP_TIMEOUT_S:g} s and was killed", file=sys.stderr)


async def pass_on_the_end(process: trio.Process) -> None:
    """Pass on nsqd's last log lines, so that it cannot block on a full pipe."""
    assert process.stderr is not None
    async for chunk in process.stderr:
        sys.stderr.write(chunk.decode(errors="replace"))


async def cancel_on_signal(
    scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Cancel *scope* at SIGINT or SIGTERM; started once it watches for them."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if not scope.cancel_called:
                print("\nstopping", flush=True)
            scope.cancel()


async def run_demo() -> None:
    """Run until SIGINT or SIGTERM.

    Raises:
        DemoError: in an ExceptionGroup, if nsqd could not start or ended by itself.
    """
    counters = Counters()
    async with trio.open_nursery() as watching:
        flowing = trio.CancelScope()
        # It watches until nsqd is gone: an impatient second Ctrl-C must not orphan it.
        await watching.start(cancel_on_signal, flowing)
        process = await start_nsqd()
        try:
            with flowing:
                await run_flow(process, counters)
        finally:
            await stop_nsqd(process)
            watching.cancel_scope.cancel()
    print(f"stopped; published {counters.published:,}, consumed {counters.consumed:,}")


async def run_flow(process: trio.Process, counters: Counters) -> None:
    """Wait until nsqd listens, then produce, consume and report until cancelled.

    Raises:
        DemoError: in an ExceptionGroup, as for `run_demo`.
    """
    async with trio.open_nursery() as flow:
        addresses = await _started(flow, process)
        text = _NEXT.format(
            topic=TOPIC, channel=CHANNEL, tcp=addresses.tcp, http=addresses.http, data=DATA_PATH
        )
        print(text, flush=True)
        await flow.start(consume, addresses.tcp, counters)
        flow.start_soon(produce, addresses.tcp, counters)
        flow.start_soon(report, counters)


async def _started(flow: trio.Nursery, process: trio.Process) -> Addresses:
    try:
        with trio.fail_after(START_TIMEOUT_S):
            addresses: Addresses = await flow.start(read_log, process)
            return addresses
    except trio.TooSlowError:
        raise DemoError(f"nsqd did not listen within {START_TIMEOUT_S:g} s") from None


def main() -> int:
    """Run the demo and return the exit code: 0 after Ctrl-C, 1 after an error."""
    try:
        trio.run(run_demo)
    except* DemoError as group:
        for error in _leaves(group):
            print(f"demo: {error}", file=sys.stderr)
        code = 1
    else:
        code = 0
    return code


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


if __name__ == "__main__":
    raise SystemExit(main())
