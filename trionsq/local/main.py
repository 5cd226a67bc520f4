"""The command ``trionsq``: what the project has beyond NSQ's own commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from trionsq import NSQ_VERSION, __version__
from trionsq.local.up import command as up

__all__ = ["main"]

_COMMANDS: Final[Mapping[str, tuple[Callable[[Sequence[str]], int], str]]] = {
    "up": (up.main, "a local cluster: nsqlookupd, any number of nsqd, and their dashboard"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with *argv* (default: the process's), and return its exit code.

    Raises:
        SystemExit: 0 after --help, 2 after a usage error.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    first = words[0] if words else ""
    if first in _COMMANDS:
        return _COMMANDS[first][0](words[1:])
    if first in ("-h", "-help", "--help", "help"):
        sys.stdout.write(_usage())
        return 0
    if first in ("-version", "--version"):
        print(f"trionsq v{__version__} (NSQ v{NSQ_VERSION})")
        return 0
    sys.stderr.write(f"trionsq: no such command: {first}\n" if first else "")
    sys.stderr.write(_usage())
    return 2


def _usage() -> str:
    rows = "".join(f"  {name}    {text}\n" for name, (_, text) in _COMMANDS.items())
    return f"Usage: trionsq COMMAND [FLAGS]\n{rows}trionsq COMMAND --help shows its flags.\n"


if __name__ == "__main__":
    raise SystemExit(main())
