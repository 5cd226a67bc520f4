"""The receiver of the Spark pipelines: into a log on disk, then FIN."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pyarrow.compute as pc

from benchmarks.clients.tally import LINGER_S, Order, Tally, read_order
from pipelines.receiver import Receiver, ReceiverConfig
from pipelines.wal import Wal, read_segment

_LOOK_S = 0.001


def main(order: Order) -> None:
    """Count what is durable. The log is where TMPDIR says, and gone before the result is told."""
    tally = Tally(order)
    config = ReceiverConfig(
        topics=(order.topic,), channel=order.channel, nsqd_tcp_addresses=(order.address,)
    )
    with tempfile.TemporaryDirectory() as folder, Wal.open(Path(folder) / "log") as wal:
        receiver = Receiver(config, wal)
        # With the time to connect: few messages all come in one segment.
        mark = tally.reached(0, 0)
        receiver.start()
        try:
            while mark < order.messages:
                receiver.check()
                if receiver.end >= mark:
                    mark = tally.reached(min(receiver.end, order.messages - 1), 0)
                time.sleep(_LOOK_S)
            while receiver.end < order.messages:
                receiver.check()
                time.sleep(_LOOK_S)
        finally:
            receiver.stop()
        nbytes = sum(
            pc.sum(pc.binary_length(batch.column("body"))).as_py()
            for ref in wal.segments(0, wal.end)
            for batch in read_segment(ref, 0, wal.end)
        )
    tally.reached(order.messages, nbytes)
    time.sleep(LINGER_S)


if __name__ == "__main__":
    main(read_order())
