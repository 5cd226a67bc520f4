"""nsqlookupd: the directory of who produces what.

- `registry`: the registration database; synchronous, the time is an argument
- `producer`: one nsqd, as it told of itself; reads the body of IDENTIFY
- `session`: the TCP protocol V1, bytes to bytes, without input or output
- `connection`: a session on a stream, bounded in time and memory
- `api`: the HTTP API
- `turns`: long work cut into turns of the event loop
- `options`, `daemon`, `cli`: the command ``nsqlookupd``

It shares wire, web and the command line's rules with trionsq, and nothing of the broker's inside.
All state is in memory: nsqds register again when they connect again. Spec: nsqlookupd.
"""
