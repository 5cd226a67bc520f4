"""The HTTP API of nsqd: a quart-trio application, and what serves it.

- `errors`, `answers`, `query`: refusals, responses and parameters, by nsqd's rules
- `app`: the application, and the rules that hold for every path
- `publish` (with `body`, `messages`, `rules`): /pub and /mpub
- `admin`: topics and channels
- `stats` (with `statistics`, `stats_text`, `memory`): /ping, /info and /stats
- `serve` (with `connection`): hypercorn on a listening socket
- `short` (with `short_way`, `head`, `ready`): /pub, /mpub and /ping without the framework

Spec: nsqd-http.
"""
