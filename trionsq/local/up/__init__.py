"""``trionsq up``: a whole local cluster by one command.

- `command`: runs it in the foreground
- `options`: the flags, and the parts that they give: names, ports, the flags of each part
- `cluster`: start in order, stop in order, signals, exit code
- `daemons`: how to run one daemon of each kind, and a part as a task of this process
- `processes`: a part as a process of its own, started again when it dies
- `child`: what such a process runs
"""
