"""The dashboard, nsqadmin: what many nsqd and nsqlookupd hold, on pages and as a JSON API.

- `options`, `cli`, `daemon`: the command; `running_nsqadmin` is a dashboard inside a context
- `dashboard`: what all parts of it share; `app`: its paths
- `upstream`: requests to nsqd and nsqlookupd; `cluster`: what they say, joined, and what they do
- `operations`: what users do, told to those who want to know; `notify` is one of them
- `api`: the JSON API of NSQ 1.3; `pages`: what a browser shows

Spec: nsqadmin.
"""
