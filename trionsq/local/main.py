"""The command ``trionsq``: a local cluster, and what operators do to a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

from trionsq import NSQ_VERSION, __version__
from trionsq.local.operate.tree import cli

__all__ = ["main"]

# As the programs of NSQ take them.
_ONE_DASH: Final = {"-help": "--help", "help": "--help", "-version": "--version"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code.

    0: done; 1: a node failed; 2: a usage error, or nobody was there to confirm; 130: Ctrl-C.

    Raises:
        SystemExit: 0 after ``up --help``, 2 after a usage error of ``up``.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in _ONE_DASH:
        words[0] = _ONE_DASH[words[0]]
    if words == ["--version"]:
        print(f"trionsq v{__version__} (NSQ v{NSQ_VERSION})")
        return 0
    try:
        return int(cli.main(words, "trionsq", standalone_mode=False) or 0)
    except click.Abort as abort:
        if isinstance(abort.__cause__, KeyboardInterrupt):
            print("trionsq: interrupted", file=sys.stderr)
            return 130
        # The answer to a question.
        print("Nothing was done.", file=sys.stderr)
        return 1
    except click.ClickException as error:
        error.show()
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
