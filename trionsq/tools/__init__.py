"""NSQ's command line tools: between nsqd and files, pipes and other programs.

- `to_nsq`, `nsq_tail`, `nsq_stat`, `nsq_to_file`, `nsq_to_http`, `nsq_to_nsq`: a module for each
  command, with its flags and `main`
- `common`: flags, addresses, client options, log lines, signals
- `stdio`: standard input and output without blocking the event loop, and a progress line
- `forwarding`, `hostpool`: what nsq_to_http and nsq_to_nsq share: messages in flight, response
  times, the choice of an address
- `json_filter`: which JSON messages nsq_to_nsq passes on
- `nsq_to_file_options`, `nsq_to_file_log`, `nsq_to_file_folders`: flags and file names, the files
  of one topic, folders and what a crash left in them

Spec: tools.
"""
