"""The trio shell of nsqd: tasks, sockets and time around the decisions of `trionsq.core`.

- `options`: what nsqd can be told
- `broker`: topics, channels and clients, and the tasks they live in
- `topic`, `channel` (with `inbox`): the task of each, and what it is handed
- `client` (with `commands`, `output`, `heartbeats`): a connection: ioloop and message pump
- `listener`, `timers`, `clock`: sockets and time
"""
