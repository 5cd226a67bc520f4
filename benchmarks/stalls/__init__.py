"""What holds the event loop up: a table of loads, each with its longest step.

`__main__` runs the chosen ones; `stage.py` is what they share: daemons that are watched
(`daemons.py`, and `inside.py`, which runs in them), a process that asks /ping (`prober.py`), and
clients (`clients.py`). The loads are in `queues.py`, `consumers.py`, `pages.py` and `cluster.py`,
their list in `shapes.py`; `rows.py` has the table.
"""
