"""A process of ``trionsq up --processes``, which runs one part.

Started as ``python -m trionsq.local.up.child NAME KIND FLAGS``. Standard input is an unused pipe
from the parent: when it closes, because the parent wants it or has died, the part stops in order.
One line of JSON on standard output has the ports, or the reason why the part could not start.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Final

import trio

from trionsq.daemon.command import prepare_process
from trionsq.daemon.gcpolicy import start_collecting
from trionsq.daemon.log import configure
from trionsq.daemon.signals import wait_second_signal
from trionsq.local.nsqd_daemon import tune_interpreter
from trionsq.local.up.daemons import KINDS, start_error
from trionsq.local.up.options import UpError
from trionsq.logtext import first_error

__all__ = ["main"]

log = logging.getLogger("trionsq")

_STDIN, _STDOUT, _STDERR = range(3)
_IGNORED_BYTES: Final = 1024


def main(argv: Sequence[str] | None = None) -> int:
    """Run a part until the parent or a signal ends it, and return the exit code.

    The code is 0 after a clean end; 1 if it could not start or save everything, or after a second
    signal.
    """
    name, kind, *flags = sys.argv[1:] if argv is None else argv
    level = _value_of(flags, "--log-level=", "info")
    configure(f"[{name}] ", level, form=_value_of(flags, "--log-format=", "classic"))
    prepare_process()
    tune_interpreter()
    failure: BaseException | None = None
    try:
        return trio.run(run_part, kind, flags)
    except Exception as error:
        failure = first_error(error)
        if reason := start_error(error):
            _report_to_parent({"error": reason})
        elif isinstance(failure, UpError):
            log.critical("%s", failure)
        else:
            log.critical("stopped by an unexpected error", exc_info=error)
    return 1


def _value_of(flags: Sequence[str], flag: str, default: str) -> str:
    return next((word.removeprefix(flag) for word in flags if word.startswith(flag)), default)


async def run_part(kind: str, flags: Sequence[str]) -> int:
    """Run a part until end of input, SIGINT or SIGTERM; a second signal stops it at once."""
    trio.lowlevel.current_task().name = kind
    start_collecting()
    stop = trio.Event()
    code = 1
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(_watch_parent, stop, name="end of the parent")
            tasks.start_soon(_watch_signals, signals, stop, tasks.cancel_scope, name="signals")
            async with KINDS[kind](flags) as ports:
                _report_to_parent(dataclasses.asdict(ports))
                await stop.wait()
            code = 0
            tasks.cancel_scope.cancel()
    return code


async def _watch_parent(stop: trio.Event) -> None:
    async with trio.lowlevel.FdStream(_STDIN) as parent:
        while await parent.receive_some(_IGNORED_BYTES):
            pass
    stop.set()


async def _watch_signals(
    signals: AsyncIterator[int], stop: trio.Event, everything: trio.CancelScope
) -> None:
    await anext(signals)
    stop.set()
    await wait_second_signal(signals)
    log.warning("second signal, stopping at once")
    everything.cancel()


def _report_to_parent(message: object) -> None:
    """Write the one line for the parent; from then on standard output is the log."""
    try:
        os.write(_STDOUT, json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        return  # the parent has died; standard input ends, too
    os.dup2(_STDERR, _STDOUT)


if __name__ == "__main__":
    raise SystemExit(main())
