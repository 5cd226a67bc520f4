"""Which client can do what: run by test_clients, told by docs/interoperation.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["CANNOT", "CLIENTS", "FEATURES", "Feature", "table"]


@dataclass(frozen=True, slots=True)
class Feature:
    """What is asked of nsqd, and how /stats shows that it was granted."""

    tls: bool = False
    compression: str = ""
    auth: bool = False

    @property
    def shown(self) -> dict[str, bool]:
        """Of the client's entry in /stats."""
        names = {"tls": self.tls, "authed": self.auth}
        return names | {name: self.compression == name for name in ("snappy", "deflate")}


CLIENTS: Final = {"pynsq": "0.9.1", "gnsq": "1.0.2", "ansq": "0.3.0", "asyncnsq": "1.2.1"}
"""Their versions, unmodified, from PyPI."""

FEATURES: Final = {
    "plain": Feature(),
    "TLS": Feature(tls=True),
    "snappy": Feature(compression="snappy"),
    "deflate": Feature(compression="deflate"),
    "TLS + snappy": Feature(tls=True, compression="snappy"),
    "TLS + deflate": Feature(tls=True, compression="deflate"),
    "AUTH": Feature(auth=True),
    "TLS + AUTH": Feature(tls=True, auth=True),
}

_ANSQ_AUTH: Final = "NSQ server requires client authorization"
_ASYNCNSQ_TLS: Final = "got an unexpected keyword argument 'loop'"

CANNOT: Final = {
    ("ansq", "TLS"): "Upgrade to TLSv1 not implemented yet",
    ("ansq", "snappy"): "Upgrade to snappy not implemented yet",
    ("ansq", "deflate"): "Upgrade to deflate not implemented yet",
    ("ansq", "TLS + snappy"): "Upgrade to TLSv1 not implemented yet",
    ("ansq", "TLS + deflate"): "Upgrade to TLSv1 not implemented yet",
    ("ansq", "AUTH"): _ANSQ_AUTH,
    ("ansq", "TLS + AUTH"): "Upgrade to TLSv1 not implemented yet",
    ("asyncnsq", "TLS"): _ASYNCNSQ_TLS,
    ("asyncnsq", "TLS + snappy"): _ASYNCNSQ_TLS,
    ("asyncnsq", "TLS + deflate"): _ASYNCNSQ_TLS,
    ("asyncnsq", "TLS + AUTH"): _ASYNCNSQ_TLS,
}
"""What ends the client's program, by client and feature: with any nsqd, of the original's too."""


def table() -> str:
    """The lines of the table in the documentation."""
    heads = [f"{name} {version}" for name, version in CLIENTS.items()]
    rows = [["", *heads], ["---"] * (len(heads) + 1)]
    for feature in FEATURES:
        marks = ["no" if (client, feature) in CANNOT else "yes" for client in CLIENTS]
        rows.append([feature, *marks])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
