"""FIN, REQ and TOUCH of messages that are not in flight at the client: whose are they?

To know that means to look at every other consumer of the channel, so it is done in turns.
"""

from __future__ import annotations

from collections.abc import Iterator

from trionsq.core.subscription import Subscription

__all__ = ["AT_ONCE_LOOKUPS_MAX", "LOOKUPS_MAX", "Missed"]

# Look-ups in the command's own turn. A turn may act on 128 commands that each spend them,
# which is less than a millisecond.
AT_ONCE_LOOKUPS_MAX = 32
# Look-ups in one turn after that: about a millisecond.
LOOKUPS_MAX = 10_000


class Missed:
    """Ids that a client named and that were not in flight there.

    Attributes:
        is_known: whether it is known which of them others hold.
    """

    __slots__ = ("_client", "_holders", "_ids", "_owned", "_sought", "is_known")

    def __init__(
        self, client: Subscription, ids: list[bytes], holders: Iterator[Subscription]
    ) -> None:
        """``holders`` yields whoever may have messages in flight; they may come and go."""
        self._client = client
        self._ids = ids
        self._holders = holders
        self._sought = set(ids)
        self._owned: set[bytes] = set()
        self.is_known = False

    def look(self, lookups_max: int) -> bool:
        """Look at some more consumers; `is_known` afterwards.

        A consumer costs one look-up, and one for each of the ids or of its messages in flight,
        whichever is less; the last one may exceed the limit by that.
        """
        sought, client = self._sought, self._client
        for consumer in self._holders:
            lookups_max -= 1
            # The client itself had none of them. What it was given since does not count.
            if consumer.in_flight and consumer is not client:
                lookups_max -= min(len(sought), len(consumer.in_flight))
                found = consumer.in_flight.keys() & sought
                if found:
                    self._owned |= found
                    sought -= found
                    if not sought:
                        break
            if lookups_max <= 0:
                return False
        self.is_known = True
        return True

    def reasons(self) -> list[tuple[bytes, str]]:
        """Each id in the order in which they were named, with the reason that its answer gives."""
        owned = self._owned
        return [
            (id_, "client does not own message" if id_ in owned else "ID not in flight")
            for id_ in self._ids
        ]
