"""NSQ's broker and client library, on trio.

The packages; docs/architecture.md says which of them may import which:

- `wire`: bytes to commands and frames, for both roles; no I/O and no clock
- `core`: decisions of topics and channels; synchronous, the time is an argument
- `storage`: disk queues and metadata
- `transports`: sockets, TLS, snappy and deflate
- `broker`: nsqd's tasks, connections and timers
- `web`, `http`: what all HTTP servers share; nsqd's HTTP API
- `client`: Producer and Consumer
- `daemon`: what all daemons share; `local`: nsqd, the local cluster, nsqadmin inside nsqd
- `tools`: the command line tools
- `debug`: inspection of a running program; `testing`: for tests of this project and of its users
"""

__version__ = "0.1.0"
NSQ_VERSION = "1.3.0"
"""The version of nsqd whose behaviour this is; clients and dashboards see it."""
