"""Bytes to commands and frames and back, for both roles. No trio, no clock, no I/O.

- `errors`, `names`, `states`: refusals, valid names, and which command is allowed in which state
- `server`: nsqd reads commands; with `lines` (command lines and runs of them), `mpub`, and `bodies`
- `keyed`: the keys that publishes may have
- `events`: the commands that `server` gives out
- `frames`: what nsqd writes
- `commands`, `client`: what a client writes, and reads
- `identify`, `auth`, `lookup`: the documents of IDENTIFY, of auth servers and of nsqlookupd
- `gojson`: JSON as Go reads it, for these documents and for nsqd.dat
"""
