"""Refusals of the HTTP API. Spec: nsqd-http, section 1."""

from __future__ import annotations

__all__ = ["HttpError"]


class HttpError(Exception):
    """A request that nsqd refuses.

    Attributes:
        status: of the answer.
        code: its ``message``, such as ``INVALID_TOPIC``.
    """

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code

    def __str__(self) -> str:
        return f"{self.status} {self.code}"
