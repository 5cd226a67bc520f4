"""NSQ's broker and client library, on trio.

The map, in the order in which one layer may use another:

- ``wire``: bytes <-> commands and frames, for both roles; no I/O and no clock
- ``core``: batches of messages, topic and channel decisions, deadlines; time is an argument
- ``storage``: disk queue, metadata, data-path lock
- ``broker``: the tasks, sockets and timers around them
- ``http``: nsqd's HTTP API
- ``client``: Producer and Consumer; it uses ``wire`` only
- ``testing``: what this project and its users test with
- ``cli``: commands and their options
"""

__version__ = "0.1.0"
NSQ_VERSION = "1.3.0"
"""The version of nsqd whose behaviour this is; clients and dashboards see it."""
