"""The tool nsq_to_nsq: messages of topics, published at other nsqds.

- `options`: the flags, and what is refused
- `fields`: which messages pass by their JSON, and which fields of it
- `destinations`: publishing, many messages under way at each destination
- `run`: which message goes where

Spec: tools, nsq_to_nsq.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trionsq.tools.common import (
    client_config,
    configure_log,
    die,
    one_kind_of_address,
    read_options,
    run_tool,
)
from trionsq.tools.nsq_to_nsq.options import Options, early_refusal, refusal
from trionsq.tools.nsq_to_nsq.run import Forwarding

__all__ = ["main"]

TOOL = "nsq_to_nsq"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after an unknown flag, 1 after other refusals.
    """
    options, _ = read_options(Options, TOOL, sys.argv[1:] if argv is None else argv)
    if why := early_refusal(options):
        die(why)
    one_kind_of_address(options.nsqd_tcp_address, options.lookupd_http_address)
    if why := refusal(options):
        die(why)
    # A message that came too often would be finished though it is nowhere else: none by default.
    assignments = ("max_attempts,0", *options.consumer_opt)
    consumer_config = client_config(
        Options, TOOL, "--consumer-opt", assignments, max_in_flight=options.max_in_flight
    )
    producer_config = client_config(Options, TOOL, "--producer-opt", options.producer_opt)
    configure_log()
    try:
        forwarding = Forwarding(options, consumer_config, producer_config)
    except ValueError as error:
        die(str(error))
    return run_tool(forwarding.run)
