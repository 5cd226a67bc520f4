"""Tokens for the HTTP API of other daemons, in files."""

from __future__ import annotations

from pathlib import Path

__all__ = ["bearer_of", "read_token"]


def read_token(path: str) -> str:
    """Return the token in a file, without space around it. Raises OSError."""
    return Path(path).read_text(encoding="utf-8", errors="replace").strip()


def bearer_of(path: str) -> dict[str, str]:
    """Return the header with the token in a file; none without a path. Raises OSError."""
    return {"Authorization": f"Bearer {read_token(path)}"} if path else {}
