"""``trionsq up``: a whole local cluster by one command.

- `options`: the flags (`errors`: what goes wrong, in one line)
- `parts`: what a cluster consists of: names, ports, flags of each part
- `daemons`: how to run one of each kind
- `cluster`: start in order, stop in order, signals, exit code
- `inside`: a part as a task of this process
- `processes`: a part as a process of its own, started again when it dies
- `child`: what such a process runs
- `command`: the command itself
"""
