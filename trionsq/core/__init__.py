"""Queue, topic and channel decisions: synchronous code to which the time is given.

- `column`, `ids`: values for each message of a batch; message ids, in ranges
- `batch`: the unit in which messages travel, and segments of it
- `queue`, `backend`, `store`: where messages wait, in memory and beyond
- `delivery`, `consumer`: messages handed to a client, in flight until a deadline
- `deferred`: messages that wait for their due time
- `channel`, `topic`: what goes where, and when
"""
