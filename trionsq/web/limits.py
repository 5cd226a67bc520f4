"""How long HTTP waits for a peer, whichever way its request is served. In seconds."""

from __future__ import annotations

__all__ = ["GRACE_S", "KEEP_ALIVE_S", "LINGER_S", "STALL_S", "WRITE_STALL_S"]

# A connection without a request, or whose request line and headers do not come, is closed then.
KEEP_ALIVE_S: float = 75.0
# A sender that is silent for so long in the midst of a body is given up.
STALL_S: float = 30.0
# A peer that takes none of a write's bytes for so long is given up.
WRITE_STALL_S: float = 30.0
# After the last answer, what the peer still sends is read and thrown away for so long.
LINGER_S: float = 0.5
# At the end, requests under way get so long.
GRACE_S: float = 1.0
