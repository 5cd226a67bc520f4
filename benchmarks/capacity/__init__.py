"""How much one nsqd holds: the tables of docs/capacity.md, measured on this machine.

`__main__` runs the chosen ones; `lab.py` is what they share, `tables.py` how they look. A file for
each matter: `throughput.py`, `connections.py`, `topics.py`, `memory.py`, `disk.py`, `cluster.py`.
Load is put on by the generator of the benchmarks (`benchmarks.generator`).
"""
