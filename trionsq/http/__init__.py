"""The HTTP API of nsqd: a quart-trio application, and a fast path past it for publishers.

- `serve`: a listening socket; connections begin on the fast path, then hypercorn has them
- `fast_connection` (with `fast_path`, `fast_requests`): /pub, /mpub and /ping without the framework
- `publish`: what both paths check of /pub and /mpub
- `app`: the endpoint of each path; /pub and /mpub through the framework
- `admin`: topics and channels, and /config; `stats`: /ping, /info and /stats; `peek`; `metrics`
- `debug`: the pages under /debug

What holds for every HTTP server of ours is in `trionsq.web`. Spec: nsqd-http.
"""
