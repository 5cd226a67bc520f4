"""NSQ's command line tools: between nsqd and files, pipes and other programs.

- `common`: flags, addresses, client options, log lines, signals, progress
- `fds`: standard input and output without blocking the loop
- `to_nsq`, `nsq_tail`, `nsq_stat`: one module for each command, each with `main`

Spec: tools.
"""
