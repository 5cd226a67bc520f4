"""The open log and the receiver, in the process that Spark has for a stream's reader.

The process ends in one of three ways: Spark closes the connection to it (the reader's ``stop``
is called), Spark sends SIGTERM (a query's ``stop``), or SIGKILL. In the first two everything
received is stored and finished, and the rest given back, before it is over.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Any, Final, NoReturn

from pipelines.receiver import Receiver, ReceiverError
from pipelines.source.options import StreamOptions
from pipelines.wal import Wal, WalLockedError

__all__ = ["Running"]

log = logging.getLogger("pipelines.source")

_LOCK_RETRY_S: Final = 0.1


class Running:
    """A log with its receiver, from the making of the object until `stop`."""

    def __init__(self, options: StreamOptions) -> None:
        """Open the log and begin to receive.

        The process before, if any, may still be ending: it is waited for.

        Raises:
            WalLockedError: another process has the log for longer than ``wal.lockTimeout``.
            WalError: the log can't be opened.
        """
        self.wal = _open(options)
        self.receiver = Receiver(options.receiver, self.wal)
        self._stopping = threading.Lock()
        self._is_stopped = False
        self._handlers: dict[int, Any] = {}
        self.receiver.start()

    def stop(self) -> None:
        """Store, finish or give back what was received, and close the log. Bounded.

        A second call, from any thread, waits for the first and does nothing.
        """
        with self._stopping:
            if self._is_stopped:
                return
            self._is_stopped = True
            self._restore_handlers()
            try:
                self.receiver.stop()
            except ReceiverError as error:
                # The log stays locked: the receiver might still write.
                log.error("%s", error)
            else:
                self.wal.close()

    def stop_at_sigterm(self) -> None:
        """Have SIGTERM do a `stop`, and SIGINT nothing: Ctrl-C is for the user's program."""
        if threading.current_thread() is threading.main_thread():
            self._handlers = {
                signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
                signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: self._end_soon()),
            }

    def _restore_handlers(self) -> None:
        if threading.current_thread() is threading.main_thread():
            while self._handlers:
                signal.signal(*self._handlers.popitem())

    def _end_soon(self) -> None:
        # Not here: the main thread was interrupted anywhere, maybe with a lock of the log.
        threading.Thread(target=self._end_process, name="end of the reader").start()

    def _end_process(self) -> NoReturn:
        try:
            self.stop()
        finally:
            os._exit(0)


def _open(options: StreamOptions) -> Wal:
    deadline_s = time.monotonic() + options.lock_timeout_s
    while True:
        try:
            return Wal.open(options.wal_path, create=True, limits=options.limits)
        except WalLockedError:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(_LOCK_RETRY_S)
