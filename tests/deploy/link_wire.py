"""A wire in user space: frames of one network device go out of another, late or never.

``python -m tests.deploy.link_wire DEVICE DEVICE SEED`` runs it, in the namespace of both devices,
as root. It obeys lines on its standard input and answers each with its counters, a line of JSON:

* ``bad MS SHARE``: from now on every frame waits so long, and such a share is thrown away
* ``stall``: nothing passes, all that comes waits
* ``reset``: connections end, by a RST to both ends for each TCP segment that comes or waits
* ``go``: pass on again
* ``count``: nothing but the counters

It ends with its input. Nothing passes before the first ``bad``.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import socket
import sys
import time
from collections import Counter, deque
from contextlib import suppress
from typing import Final

from tests.deploy.link_reset import resets

__all__ = ["HELD_MAX", "Direction"]

HELD_MAX: Final = 20_000
"""Frames in one direction that may wait; further ones are thrown away."""

_ETH_P_ALL: Final = 3
_SOL_PACKET: Final = 263
_PACKET_IGNORE_OUTGOING: Final = 23
_SO_RCVBUFFORCE: Final = 33
_FRAME_NBYTES: Final = 65_536
_BUFFER_NBYTES: Final = 8 * 1024 * 1024
_FRAMES_A_TURN: Final = 64
_INPUT: Final = 0


class Direction:
    """What is under way from one device to the other. No I/O; times are given.

    Attributes:
        counts: frames that were ``taken``, ``passed``, ``lost``, ``overflowed`` (no room to wait),
            answered by a ``reset``, and ``refused`` by a device.
    """

    def __init__(self, seed: int) -> None:
        """Idle until `set_bad`."""
        self.counts = Counter[str]()
        self._held: deque[tuple[float, bytes]] = deque()
        self._random = random.Random(seed)
        self._delay_s = 0.0
        self._loss = 0.0

    def set_bad(self, delay_s: float, loss: float) -> None:
        """Delay frames that come from now on, and lose a share of them (0 to 1)."""
        self._delay_s = delay_s
        self._loss = loss

    def take(self, frame: bytes, now_s: float) -> None:
        """A frame that came."""
        self.counts["taken"] += 1
        if self._loss and self._random.random() < self._loss:
            self.counts["lost"] += 1
        elif len(self._held) >= HELD_MAX:
            self.counts["overflowed"] += 1
        else:
            self._held.append((now_s + self._delay_s, frame))

    def due_in_s(self, now_s: float) -> float | None:
        """How long the first frame has to wait yet; None if there is none."""
        return max(0.0, self._held[0][0] - now_s) if self._held else None

    def take_due(self, now_s: float) -> list[bytes]:
        """The frames that have waited long enough; they are gone from here."""
        held, due = self._held, []
        while held and held[0][0] <= now_s:
            due.append(held.popleft()[1])
        self.counts["passed"] += len(due)
        return due

    def take_resets(self) -> tuple[list[bytes], list[bytes]]:
        """Of all that waits: frames back to the senders, and on to the receivers.

        Instead of TCP segments these are resets; what is not TCP goes on as it is.
        """
        back, on = [], []
        while self._held:
            _, frame = self._held.popleft()
            if pair := resets(frame):
                self.counts["reset"] += 1
                back.append(pair[0])
            on.append(pair[1] if pair else frame)
        return back, on


class _Wire:
    """Two devices, and what goes both ways between them."""

    def __init__(self, devices: tuple[str, str], seed: int) -> None:
        self._ends = tuple(map(_opened, devices))
        self._ways = (Direction(seed), Direction(seed + 1))
        self._mode = "off"
        self._text = b""

    def run(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(_INPUT, selectors.EVENT_READ)
            for number, end in enumerate(self._ends):
                ready.register(end, selectors.EVENT_READ, number)
            print("ready", flush=True)
            while True:
                for key, _ in ready.select(self._patience_s()):
                    if key.data is not None:
                        self._take(key.data)
                    elif not self._obey_all():
                        return
                self._pass_on()

    def _patience_s(self) -> float | None:
        if self._mode == "stall":
            return None
        now_s = time.monotonic()
        waits = [wait for way in self._ways if (wait := way.due_in_s(now_s)) is not None]
        return min(waits, default=None)

    def _obey_all(self) -> bool:
        """Whether there is more input to come."""
        data = os.read(_INPUT, 4096)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self._obey(line.decode().split())
            counts = self._ways[0].counts + self._ways[1].counts
            print(json.dumps(counts), flush=True)
        return bool(data)

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["bad", delay_ms, share]:
                for way in self._ways:
                    way.set_bad(float(delay_ms) / 1000, float(share))
                if self._mode == "off":
                    for end in self._ends:
                        _empty(end)
                self._mode = "go"
            case ["stall" | "reset" | "go" as mode]:
                self._mode = mode

    def _take(self, number: int) -> None:
        way, end = self._ways[number], self._ends[number]
        for _ in range(_FRAMES_A_TURN):
            try:
                frame = end.recv(_FRAME_NBYTES)
            except OSError:  # nothing more, or the link is down
                return
            if self._mode != "off":
                way.take(frame, time.monotonic())

    def _pass_on(self) -> None:
        if self._mode == "stall":
            return
        now_s = time.monotonic()
        for way, here, there in zip(self._ways, self._ends, self._ends[::-1], strict=True):
            if self._mode == "reset":
                back, on = way.take_resets()
            else:
                back, on = [], way.take_due(now_s)
            for frame in back:
                _send(here, frame, way)
            for frame in on:
                _send(there, frame, way)


def _opened(device: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_NBYTES)
    sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    sock.bind((device, _ETH_P_ALL))
    sock.setblocking(False)
    return sock


def _empty(end: socket.socket) -> None:
    with suppress(BlockingIOError):
        while end.recv(_FRAME_NBYTES):
            pass


def _send(end: socket.socket, frame: bytes, way: Direction) -> None:
    try:
        end.send(frame)
    except OSError:  # the link is down or its queue full, where frames are lost, too
        way.counts["refused"] += 1


def main() -> None:
    """Until the input ends."""
    first, second, seed = sys.argv[1:]
    _Wire((first, second), int(seed)).run()


if __name__ == "__main__":
    main()
