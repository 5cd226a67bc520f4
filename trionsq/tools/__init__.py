"""NSQ's command line tools: between nsqd and files, pipes and other programs.

- `common`: flags, addresses, client options, log lines, signals, progress
- `fds`: standard input and output without blocking the loop
- `forwarding`, `hostpool`, `request_times`: what nsq_to_http and nsq_to_nsq share
- `to_nsq`, `nsq_tail`, `nsq_stat`, `nsq_to_file`, `nsq_to_http`, `nsq_to_nsq`: one module or
  package for each command, each with `main`

Spec: tools.
"""
