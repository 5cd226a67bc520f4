"""HTTP as all our servers speak it: the same refusals, responses, redirects and limits.

Without a framework:

- `protocol`: refusals, query parameters and JSON by nsqd's rules
- `limits`: how long HTTP waits for a peer
- `sites`, `gate`: which requests and how many connections are refused
- `serve`: a listening socket, its connections, and other applications below a path

With hypercorn and quart-trio, which take long to import:

- `framework`: all that we override of both
- `app`: makes a quart-trio application of endpoints; the rules for every path
- `request`, `responses`: what endpoints read and return
- `metrics`: /metrics; `diagnostics`: /live, /ready and /debug/pprof

Nothing here knows what is served. Spec: nsqd-http, section 1.
"""
