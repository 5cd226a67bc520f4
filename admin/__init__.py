"""The dashboard, nsqadmin: a whole cluster on pages and as a JSON API.

- `options`, `cli`, `daemon`: the command; `running_nsqadmin` is a dashboard inside a context
- `dashboard`: what all parts of it share
- `app`: its paths and hooks; `assets`, `metrics`, `graphite`: some of the paths
- `upstream`: requests to nsqd and nsqlookupd
- `cluster`: questions to all nodes, and their answers joined
- `operations`: what users do to the cluster; each is a `UserAction`, which goes to the audit and
  to `notify`
- `access`: who may do what; `watch`: the poller, rates, history and health
- `api`: the JSON API of NSQ 1.3; `pages`: the pages for browsers

Spec: nsqadmin.
"""
