"""nsqlookupd: the directory of who produces what.

- `registry`: the registration database; synchronous, the time is an argument
- `session`: the TCP protocol V1, bytes to bytes, without input or output
- `api`: the HTTP API; `metrics`: its /metrics
- `turns`: long work in short turns of the event loop
- `options`, `daemon`, `cli`: the command ``nsqlookupd``; `daemon` also runs a session on a stream

It shares wire, web and the command line's rules with trionsq, and nothing of the broker's inside.
All state is in memory: nsqds register again when they connect again. Spec: nsqlookupd.
"""
