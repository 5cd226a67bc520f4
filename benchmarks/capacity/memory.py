"""Memory: what a waiting message holds, and what is left of it after a drain."""

from __future__ import annotations

from benchmarks.capacity.connections import dial, read_frame
from benchmarks.capacity.lab import Lab, forget_peak, peak_bytes, sizes
from benchmarks.capacity.tables import Table
from benchmarks.generator import TOPIC, MeasureError

# Bytes of bodies that are put into memory at once.
WAITING_NBYTES = 300_000_000
MOST_MESSAGES = 1_000_000
DEFERRED = 100_000
UNDER_WAY = 100


def measure_memory(lab: Lab) -> Table:
    """Growth of resident memory by messages that wait, by size, way and channels."""
    table = Table(
        "memory",
        "messages that wait in memory",
        "body, published by, channels, messages, bytes each, more than body,"
        " peak of the drain MB, left after MB",
        "Peak: over what was resident when the drain began, 2 consumers at RDY 2500 on one"
        " channel. Left: over what was resident before all.",
    )
    for nbytes, batch, channels in (
        (100, 100, 1),
        (1_000, 100, 1),
        (10_000, 20, 1),
        (100_000, 5, 1),
        (1_000, 0, 1),
        (1_000, 100, 3),
    ):
        count = lab.some(min(WAITING_NBYTES // nbytes, MOST_MESSAGES), 100)
        table.add(f"{nbytes:,} B", *_waiting(lab, count, nbytes, batch, channels))
    table.add("1,000 B", *_deferred(lab, lab.some(DEFERRED, 100), 1_000))
    return table


def _waiting(
    lab: Lab, count: int, nbytes: int, batch: int, channels: int
) -> tuple[str | float, ...]:
    way: dict[str, int] = {"batch": batch} if batch else {"window": 100}
    with lab.nsqd(channels=channels) as server:
        pid = server.process.pid
        empty = server.resident_bytes()
        lab.publish(server, count, publishers=2, **way, **sizes(nbytes))
        full = server.resident_bytes()
        forget_peak(pid)
        for number in range(channels):
            lab.consume(
                server, count, channel=f"bench{number}", consumers=2, rdy=2500, **sizes(nbytes)
            )
        peak, left = peak_bytes(pid), server.resident_bytes()
    each = (full - empty) / count
    return (
        f"MPUB of {batch}" if batch else "PUB",
        str(channels),
        f"{count:,}",
        each,
        each - nbytes,
        (peak - full) / 1e6,
        (left - empty) / 1e6,
    )


def _deferred(lab: Lab, count: int, nbytes: int) -> tuple[str | float | None, ...]:
    """Messages by DPUB, due in a quarter of an hour."""
    command = b"DPUB %s 900000\n%s" % (TOPIC.encode(), nbytes.to_bytes(4, "big") + b"n" * nbytes)
    with lab.nsqd() as server, dial(server) as sock:
        empty = server.resident_bytes()
        for _ in range(count // UNDER_WAY):
            sock.sendall(command * UNDER_WAY)
            for _ in range(UNDER_WAY):
                if (answer := read_frame(sock)) != b"\0\0\0\0OK":
                    raise MeasureError(f"nsqd answered {answer!r}")
        each = (server.resident_bytes() - empty) / count
    return "DPUB", "1", f"{count:,}", each, each - nbytes, None, None
