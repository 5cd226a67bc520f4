"""The cluster as one.

- `shapes`: what nsqd and nsqlookupd answer
- `queries`: all nodes are asked at once, and their answers become one
- `steps`: what an action sends to which nodes, and in which order
- `merge`: statistics of many nodes as the objects of the JSON API
- `turns`: long work in short turns of the event loop
"""
