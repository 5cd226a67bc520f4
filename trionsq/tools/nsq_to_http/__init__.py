"""The tool nsq_to_http: each message of a topic becomes an HTTP request.

- `options`: the flags, and what is refused
- `requests`: one message to one address
- `run`: which message goes where, and what is answered to nsqd

Spec: tools, nsq_to_http.
"""

from __future__ import annotations

from collections.abc import Sequence

from trionsq.tools.common import checked_options, configure_log, consumer_config, die, run_tool
from trionsq.tools.nsq_to_http.options import Options, early_refusal, refusal
from trionsq.tools.nsq_to_http.run import Sending

__all__ = ["main"]

TOOL = "nsq_to_http"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help or --version, 2 after an unknown flag, 1 after other refusals.
    """
    options = checked_options(Options, TOOL, argv, early_refusal, refusal)
    config = consumer_config(options, TOOL)
    configure_log()
    try:
        sending = Sending(options, config)
    except ValueError as error:
        die(str(error))
    return run_tool(sending.run)
