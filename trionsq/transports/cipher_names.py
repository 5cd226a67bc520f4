"""Names of cipher suites and TLS versions as nsqd shows them.

Spec: nsqd-http, section 5 (TLS fields).
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Mapping
from typing import Final

__all__ = ["suite_name", "version_name"]

# By the numbers that TLS has for them. nsqd knows these and no others.
_NAMES: Final = {
    0x0005: "TLS_RSA_WITH_RC4_128_SHA",
    0x000A: "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    0x002F: "TLS_RSA_WITH_AES_128_CBC_SHA",
    0x0035: "TLS_RSA_WITH_AES_256_CBC_SHA",
    0xC007: "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    0xC009: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    0xC00A: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    0xC011: "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    0xC012: "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    0xC013: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    0xC014: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    0xC02B: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    0xC02F: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
}
_VERSIONS: Final = {"TLSv1": "TLS1.0"}


def suite_name(openssl_name: str) -> str:
    """The name of a suite; ``Unknown 4865`` for those that nsqd has no name for."""
    number = _numbers().get(openssl_name, 0)
    return _NAMES.get(number) or f"Unknown {number}"


def version_name(openssl_name: str) -> str:
    """``TLS1.2`` for ``TLSv1.2``."""
    return _VERSIONS.get(openssl_name) or openssl_name.replace("TLSv", "TLS")


@functools.cache
def _numbers() -> Mapping[str, int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    return {cipher["name"]: cipher["id"] & 0xFFFF for cipher in context.get_ciphers()}
