"""Queue, topic and channel decisions: synchronous code; the time is an argument.

- `batch`, `ids`: messages published together, and their ids
- `queue`: messages that wait in memory, and the interface of the backend for what is over
- `keys`: which publishes are repeated ones
- `topic`: `TopicState` admits messages and hands them to its channels
- `channel`: `ChannelState`, the state of a channel; `dispatch` delivers to clients with credit
- `recovered`: the queue of a channel, without the copies that an unclean end left
- `policies`: what may be set; `governed`, `governed_topic`, `bounded`: the policies at work on
  channels, topics and their queues, which have a `governor` as long as one applies
- `subscription`: one client's RDY, and its `Delivery` objects with their frames
- `in_flight`: the messages that all clients of a channel hold, and their deadlines
- `deferred`: messages that wait for their due time
- `peek`, `latency`: looking at messages, and times from publishing to FIN
- `containers`: members in order of arrival, items in order of time
"""
