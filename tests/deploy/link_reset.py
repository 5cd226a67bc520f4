"""The response of a middlebox that has forgotten a connection: TCP RST to both ends.

Frames are Ethernet with IPv4, as on the links of `tests.deploy.netns`.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

__all__ = ["checksum", "resets"]

_ETHERNET: Final = struct.Struct("!6s6sH")
_IPV4: Final = struct.Struct("!BBHHHBBH4s4s")
_TCP: Final = struct.Struct("!HHIIBBHHH")
_PSEUDO: Final = struct.Struct("!4s4sBBH")
_TYPE_IPV4: Final = 0x0800
_FIN: Final = 0x01
_SYN: Final = 0x02
_RST: Final = 0x04
_ACK: Final = 0x10
_TTL: Final = 64


def resets(frame: bytes) -> tuple[bytes, bytes] | None:
    """Frames that end the connection of this one, for its sender and for its receiver.

    None if it is not of a TCP connection over IPv4, or a reset itself.

    A kernel believes a reset with exactly the number that it expects next: of the sender this is
    what it acknowledges; of the receiver what it is sent, unless something before was lost, and
    then a segment that is sent again will do.
    """
    if len(frame) < _ETHERNET.size + _IPV4.size + _TCP.size:
        return None
    to_mac, from_mac, kind = _ETHERNET.unpack_from(frame)
    if kind != _TYPE_IPV4:
        return None
    version, _, total, _, _, _, protocol, _, source, target = _IPV4.unpack_from(frame, 14)
    start = 14 + (version & 15) * 4
    if protocol != socket.IPPROTO_TCP or len(frame) < start + _TCP.size:
        return None
    from_port, to_port, number, acked, offset, flags, *_ = _TCP.unpack_from(frame, start)
    if flags & _RST:
        return None
    size = total - (start - 14) - (offset >> 4) * 4 + bool(flags & _SYN) + bool(flags & _FIN)
    after = (number + size) & 0xFFFFFFFF
    to_sender = _reset(target, source, to_port, from_port, acked, after)
    to_receiver = _reset(source, target, from_port, to_port, number, acked)
    return (
        _ETHERNET.pack(from_mac, to_mac, _TYPE_IPV4) + to_sender,
        _ETHERNET.pack(to_mac, from_mac, _TYPE_IPV4) + to_receiver,
    )


def checksum(data: bytes) -> int:
    """The Internet checksum; 0 over data that holds its own."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def _reset(
    source: bytes, target: bytes, from_port: int, to_port: int, number: int, acked: int
) -> bytes:
    """The packet from ``source``."""
    flags = _RST | _ACK
    head = [from_port, to_port, number, acked, 5 << 4, flags, 0]
    pseudo = _PSEUDO.pack(source, target, 0, socket.IPPROTO_TCP, _TCP.size)
    segment = _TCP.pack(*head, checksum(pseudo + _TCP.pack(*head, 0, 0)), 0)
    ip_head = [0x45, 0, _IPV4.size + _TCP.size, 0, 0x4000, _TTL, socket.IPPROTO_TCP]
    packet = _IPV4.pack(*ip_head, 0, source, target)
    return _IPV4.pack(*ip_head, checksum(packet), source, target) + segment
