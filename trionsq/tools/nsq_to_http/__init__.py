"""The tool nsq_to_http: each message of a topic becomes an HTTP request.

- `options`: the flags, and what is refused
- `requests`: one message to one address
- `run`: which message goes where, and what is answered to nsqd

Spec: tools, nsq_to_http.
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
from trionsq.tools.nsq_to_http.options import Options, early_refusal, refusal
from trionsq.tools.nsq_to_http.run import Sending

__all__ = ["main"]

TOOL = "nsq_to_http"


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
    # A message that came too often would be finished though it was never sent: none by default.
    assignments = ("max_attempts,0", *options.consumer_opt)
    config = client_config(
        Options, TOOL, "--consumer-opt", assignments, max_in_flight=options.max_in_flight
    )
    configure_log()
    try:
        sending = Sending(options, config)
    except ValueError as error:
        die(str(error))
    return run_tool(sending.run)
