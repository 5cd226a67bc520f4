"""The tool nsq_to_file: what topics get, in files.

- `names`: file names from formats
- `topic_log`: the files of one topic, synchronous
- `options`: the flags, and what is refused
- `run`: consumers, time and signals

Spec: tools, nsq_to_file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trionsq.daemon import log
from trionsq.tools.common import consumer_config, die, one_kind_of_address, read_options, run_tool
from trionsq.tools.nsq_to_file.options import Options, refusal
from trionsq.tools.nsq_to_file.run import serve

__all__ = ["main"]

TOOL = "nsq_to_file"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after an unknown flag, 1 after other refusals.
    """
    options, rest = read_options(Options, TOOL, sys.argv[1:] if argv is None else argv)
    if rest:
        die(f"unknown arguments: [{' '.join(rest)}]")
    try:
        log.configure(options.log_prefix, options.log_level.lower())
    except KeyError:
        die("--log-level is invalid")
    one_kind_of_address(options.nsqd_tcp_address, options.lookupd_http_address)
    if why := refusal(options):
        die(why)
    return run_tool(serve, options, consumer_config(options, TOOL))
