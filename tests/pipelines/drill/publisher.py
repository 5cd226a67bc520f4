"""Publishes numbered messages, as far as it is allowed to, and knows which ones nsqd confirmed."""

from __future__ import annotations

import threading
import time
from http.client import HTTPException
from typing import Final

from tests.pipelines.source.publishing import publish

__all__ = ["Publisher", "body_of"]

PART: Final = 250
PAUSE_S: Final = 0.005
RETRY_S: Final = 0.1


def body_of(number: int) -> bytes:
    """100 bytes."""
    return b"%0100d" % number


class Publisher(threading.Thread):
    """Publishes what it is allowed to; what is not answered is not owed, and not tried again.

    Attributes:
        confirmed: numbers of the messages that nsqd has.
        unknown: of those that it may have.
    """

    def __init__(self, topic: str, *http_addresses: str) -> None:
        """Publishes to the nsqds in turns."""
        super().__init__(name="publisher", daemon=True)
        self.confirmed: set[int] = set()
        self.unknown: set[int] = set()
        self._allowed = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._http_addresses = http_addresses
        self._topic = topic

    def allow(self, messages: int) -> None:
        """Have so many confirmed, since the begin."""
        with self._changed:
            self._allowed = messages
            self._changed.notify_all()

    def end(self) -> None:
        """No more; returns when that is so."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self.join()

    def run(self) -> None:
        """The thread."""
        following = 0
        while self._has_work():
            part = range(following, following + PART)
            address = self._http_addresses[following // PART % len(self._http_addresses)]
            following += PART
            try:
                publish(address, self._topic, [body_of(number) for number in part])
            except (OSError, HTTPException):
                self.unknown.update(part)
                time.sleep(RETRY_S)
            else:
                self.confirmed.update(part)
                time.sleep(PAUSE_S)

    def _has_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or len(self.confirmed) < self._allowed)
            return not self._is_over
