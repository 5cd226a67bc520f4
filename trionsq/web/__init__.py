"""HTTP as all our servers speak it: the same refusals, answers, redirects and bounds.

- `errors`, `answers`, `query`: refusals, responses and parameters, by nsqd's rules
- `app`: a quart-trio application of given endpoints, and the rules that hold for every path
- `body`: request bodies, bounded; `pace`: how slowly they may come
- `serve` (with `connection`): hypercorn on a listening socket
- `pprof` (with `guard`, `debug_answers`): the debug pages that Go programs have

Nothing here knows what is served. Spec: nsqd-http, section 1.
"""
