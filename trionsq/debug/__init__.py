"""Looking into a running trio program: its tasks, its event loop, its memory, its processor time.

Nothing here knows of messages or HTTP, and nothing runs unless it is requested.

- `tasks`: the living tree of nurseries and tasks
- `loop`: what the event loop does for a while: turns, lag, its longest steps (`steps`)
- `process`: memory, descriptors, threads, and the objects in memory
- `profile`: a sampling profiler, whose profiles `go tool pprof` opens
"""
