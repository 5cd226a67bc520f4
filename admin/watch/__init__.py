"""The state of the cluster over time, found by one poller for all viewers.

In reading order:

- `snapshot`: the rows and problems that a poll found
- `requests`: what the poller requests from a node; `vitals`: what a node says of itself
- `node`: what the poller remembers of a node, with rates; `known`: which nodes there are
- `gathering`: the answers of a poll become its snapshot
- `ring`, `history`: the last day; `archive`: the same on disk; `marks`: what happened in it
- `health`, `node_health`: what is wrong; `incidents`: since when
- `state`: what outlives nsqadmin; `poller`: when to request what from which node
- `events`: browsers learn of each poll
"""
