"""What every daemon shares, below all of them.

- `command`: from a command line and a config file to options, or to the right exit code
- `flags`: the flags of a command line; which flags exist is in the options dataclass
- `log`: the log lines, classic or JSON
- `listener`: listening sockets and accepting
- `signals`: a second signal, told from an echo of the first
- `gcpolicy`: when the garbage collector runs; `looplag`: how late the event loop is
"""
