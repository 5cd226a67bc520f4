"""The state of the cluster over time, found by one poller for all viewers.

In reading order:

- `snapshot`: the rows and problems that a poll found
- `requests`: what the poller requests from a node; `node`: what it remembers of one, with rates
- `gathering`: the answers of a poll become its snapshot
- `history`: the last hour; `health`: what is wrong
- `poller`: when to request what from which node
- `events`: browsers learn of each poll
"""
