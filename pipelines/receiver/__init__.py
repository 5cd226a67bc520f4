"""The receiver: receives messages from nsqds, stores them in the log, then finishes them.

A thread runs trio with a consumer for each topic and connection, and one segment writer. A message
is received, made durable in the log, made visible (`Receiver.end`), and finished, in this order. So
no message is lost. A stored message that is delivered again is recognized by (topic, nsqd, id) as
long as the log retains it.

- `config`: `ReceiverConfig`
- `receiver`: `Receiver`, the thread and its consumers
- `writer`: when a segment is written, and what follows
- `flow`: RDY, and the counters

::

    receiver = Receiver(ReceiverConfig(topics=("t",), channel="c", nsqd_tcp_addresses=(...)), wal)
    receiver.start()
    try:
        receiver.check()      # raises the failure of the thread
        receiver.end          # messages before this position are stored
    finally:
        receiver.stop()
"""

from pipelines.errors import ReceiverError
from pipelines.receiver.config import ReceiverConfig
from pipelines.receiver.receiver import Receiver

__all__ = ["Receiver", "ReceiverConfig", "ReceiverError"]
