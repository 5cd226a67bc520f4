"""The HTTP API of nsqd: a quart-trio application, and what serves it.

- `app`: which path does what; what holds for every path is in `trionsq.web`
- `publish` (with `messages`, `rules`): /pub and /mpub
- `admin`: topics and channels
- `stats` (with `statistics`, `stats_text`, `memory`): /ping, /info and /stats
- `serve`: the short way, then hypercorn, on a listening socket
- `short` (with `short_way`, `head`, `ready`): /pub, /mpub and /ping without the framework

Spec: nsqd-http.
"""
