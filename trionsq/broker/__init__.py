"""The trio shell of nsqd: tasks, sockets and time around the decisions of `trionsq.core`.

In this order each file imports only from those before it, and from other packages:

- `options`, `runtime`, `defects`, `chores`: options; clock and ports; unexpected
  exceptions; work in turns
- `admission`, `auth`, `heartbeats`, `inbox`, `output`: parts of a connection
- `connection`: the tasks of a client: its ioloop and its message pump
- `client`: what a connection knows, and how its commands are run
- `channel`, `topic`: the task of each
- `lookup_peer`, `lookup`: the nsqlookupds that nsqd is registered at
- `timers`: queue scan, heartbeats and disk syncs
- `logs`, `backups`, `frozen`, `moving`, `moves`: topics that have a log; their backups; how a topic
  gets one
- `registry`: topics and channels by name
- `identify`, `commands`: what is done for each command of a client
- `stats_types`, `statistics`, `statsd`: what nsqd says of itself
- `background`, `saving`, `metadata`, `checks`: disk jobs; the stop; nsqd.dat; invariants
- `broker`: all of them together
"""
