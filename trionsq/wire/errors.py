"""The one error of the protocol: a code for machines, a text for people, and whether it is fatal.

Spec: tcp-protocol, section 4 (error frames).
"""

from __future__ import annotations

from typing import Final

__all__ = ["DRAINING", "ProtocolError"]

DRAINING: Final = "draining"
"""Why an nsqd that is drained refuses publishes."""

_DRAINED: Final = f" failed {DRAINING}".encode()


class ProtocolError(Exception):
    """A command that nsqd refuses.

    Args:
        code: the machine-readable code, ``E_INVALID`` and the like.
        text: the description that follows the code; a `bytes` text is sent as it is, because it
            may quote what a client sent.
        fatal: whether nsqd closes the connection after it has written the error frame. Only
            FIN, REQ and TOUCH have errors that are not.
    """

    def __init__(self, code: str, text: str | bytes = b"", fatal: bool = True) -> None:
        super().__init__(code, text, fatal)
        self.code = code
        self.text = text.encode() if isinstance(text, str) else text
        self.fatal = fatal

    @property
    def is_draining(self) -> bool:
        """Whether a publish was refused by a drain: it is not stored, and another nsqd takes it."""
        return self.code.endswith("PUB_FAILED") and self.text.endswith(_DRAINED)

    def __str__(self) -> str:
        text = self.text.decode(errors="replace")
        return f"{self.code} {text}" if text else self.code
