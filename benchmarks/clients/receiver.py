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
    mark = tally.mark
    config = ReceiverConfig(
        topics=(order.topic,), channel=order.channel, nsqd_tcp_addresses=(order.address,)
    )
    with tempfile.TemporaryDirectory() as folder, Wal.open(Path(folder) / "log") as wal:
        receiver = Receiver(config, wal)
        receiver.start()
        try:
            while receiver.end < order.messages:
                receiver.check()
                if receiver.end >= mark:
                    mark = tally.reached(receiver.end, 0)
                time.sleep(_LOOK_S)
            if mark < order.messages:  # the last ones came at once
                tally.reached(receiver.end, 0)
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
