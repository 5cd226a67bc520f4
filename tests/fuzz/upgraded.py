"""Streams of commands under snappy or deflate, whole and broken."""

from __future__ import annotations

from random import Random

from tests.fuzz.mutate import mutated
from trionsq.transports.compression import DeflateLayer, SnappyLayer
from trionsq.transports.transport import Layer
from trionsq.wire import commands
from trionsq.wire.states import MAGIC_V2

__all__ = ["upgraded"]

_BOMB_NBYTES = 2**24


def upgraded(random: Random, data: bytes) -> bytes:
    """``data``, which begins with the magic, under a layer that IDENTIFY asks for.

    All in one piece: what follows IDENTIFY belongs to the layer, though a polite client would wait.
    """
    name = random.choice(("snappy", "deflate"))
    layer: Layer = SnappyLayer() if name == "snappy" else DeflateLayer(random.randint(1, 9))
    inside = data[len(MAGIC_V2) :]
    if random.random() < 0.05:
        inside += bytes(random.randrange(_BOMB_NBYTES))
    middle = random.randrange(len(inside) + 1)
    under = layer.encode(inside[:middle] or b"\n") + layer.encode(inside[middle:] or b"\n")
    if random.random() < 0.5:
        under = mutated(random, under)
    identify = commands.identify({"feature_negotiation": True, name: True})
    return MAGIC_V2 + identify + under
