"""The tool nsq_to_nsq: messages of topics, published at other nsqds.

- `options`: the flags, and what is refused
- `fields`: which messages pass by their JSON, and which fields of it
- `destinations`: publishing, many messages under way at each destination
- `run`: which message goes where

Spec: tools, nsq_to_nsq.
"""

from __future__ import annotations

from collections.abc import Sequence

from trionsq.tools.common import (
    checked_options,
    client_config,
    configure_log,
    consumer_config,
    die,
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
    options = checked_options(Options, TOOL, argv, early_refusal, refusal)
    config = consumer_config(options, TOOL)
    producer_config = client_config(Options, TOOL, "--producer-opt", options.producer_opt)
    configure_log()
    try:
        forwarding = Forwarding(options, config, producer_config)
    except ValueError as error:
        die(str(error))
    return run_tool(forwarding.run)
