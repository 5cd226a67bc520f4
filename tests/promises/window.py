"""What one connection has in flight, as its client sees it: never more than its RDY."""

from __future__ import annotations

__all__ = ["Window"]


class Window:
    """Messages that came on a connection and were not answered yet.

    Attributes:
        ready: the RDY that was sent last.
        bound: so many may be in flight: a lower RDY counts when the last one is confirmed.
    """

    def __init__(self, forget_s: float) -> None:
        """What came ``forget_s`` ago may have timed out at nsqd, and is in flight no more."""
        self.ready = self.bound = 0
        self._unconfirmed = 0
        self._forget_s = forget_s
        # When each message came, by id.
        self._came_s: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._came_s)

    def set_ready(self, count: int) -> None:
        """RDY was sent."""
        self.ready, self.bound = count, max(count, self.bound)
        self._unconfirmed += 1

    def confirm_ready(self) -> None:
        """nsqd answered what was sent after the oldest RDY without an answer."""
        self._unconfirmed -= 1
        if not self._unconfirmed:
            self.bound = self.ready

    def receive(self, message_id: bytes, now_s: float) -> bool:
        """A message came; whether that is one too many."""
        # Oldest first, as they came.
        for known_id, came_s in list(self._came_s.items()):
            if now_s - came_s <= self._forget_s:
                break
            del self._came_s[known_id]
        self._came_s.pop(message_id, None)
        self._came_s[message_id] = now_s
        return len(self._came_s) > self.bound

    def answer(self, message_id: bytes) -> None:
        """FIN or REQ was sent."""
        self._came_s.pop(message_id, None)
