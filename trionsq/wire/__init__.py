"""Bytes to commands and frames and back, for both roles. No trio, no clock, no I/O.

- `errors`, `names`, `states`: what is refused, what is valid, what is allowed when
- `identify` (with `gojson`): the negotiation
- `server` (with `params`, `runs`, `mpub`, `bodies`, `events`): nsqd's side, bytes to events
- `frames`: what nsqd writes
- `commands`, `client`, `columns`: the client's side
"""
