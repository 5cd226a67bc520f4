"""The receiver: takes messages from nsqds, stores them in the log, then finishes them.

A thread runs trio; in it a consumer for each topic and connection, and one writer. The order is:
received, durable in the log, visible (`Receiver.end`), FIN. So nothing is lost, and what comes
again although it was stored is recognized by (topic, nsqd, id), as long as the log retains it.

- `config`: `ReceiverConfig`
- `receiver`: `Receiver`, the thread and its consumers
- `writer`: when a segment is cut, and what follows when it is written or can't be
- `flow`: how much is taken: RDY, and when it is 0
- `topics`: the topics of a pattern, from nsqlookupd
- `statistics`, `errors`

::

    receiver = Receiver(ReceiverConfig(topics=("t",), channel="c", nsqd_tcp_addresses=(...)), wal)
    receiver.start()
    try:
        receiver.check()      # raises what ended the thread
        receiver.end          # stored up to here
    finally:
        receiver.stop()
"""

from pipelines.receiver.config import ReceiverConfig
from pipelines.receiver.errors import ReceiverError
from pipelines.receiver.receiver import Receiver

__all__ = ["Receiver", "ReceiverConfig", "ReceiverError"]
