"""Codecs: between the values of a program and the bytes of a message.

``Producer(address, codec=JsonCodec())`` publishes values, and ``Consumer(..., codec=JsonCodec())``
has them as ``message.body``. A class with `Codec.encode` and `Codec.decode` is a codec. Without one
a body is bytes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

# The default makes `Producer`, `Consumer` and `Message` without parameters those of bytes.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=bytes)
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["Codec", "JsonCodec", "MsgspecCodec", "PydanticCodec", "StrCodec", "T"]


class Codec(Protocol[T]):
    """What a Producer and a Consumer need of a codec. Both methods must be quick: they run in the
    event loop, once for each message."""

    def encode(self, value: T) -> bytes:
        """The body of a message. What it raises is raised by the publish; nothing is sent."""

    def decode(self, body: bytes) -> T:
        """The value. If it raises, the message goes to the consumer's ``on_give_up``."""


class StrCodec:
    """Text as UTF-8."""

    def encode(self, value: str) -> bytes:
        """Raises UnicodeEncodeError: a lone surrogate."""
        return value.encode()

    def decode(self, body: bytes) -> str:
        """Raises UnicodeDecodeError."""
        return body.decode()


class JsonCodec:
    """What JSON has: dicts with string keys, lists, strings, numbers, booleans, None."""

    def encode(self, value: Any) -> bytes:
        """Raises TypeError: JSON has no such type; ValueError: NaN, an infinity, a cycle."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()

    def decode(self, body: bytes) -> Any:
        """Raises ValueError: not JSON; RecursionError: nested too deep."""
        return json.loads(body)


class MsgspecCodec(Generic[T]):
    """Any type that msgspec knows (Struct, dataclass, list, ...), checked when it is decoded."""

    def __init__(self, type_: type[T], *, is_msgpack: bool = False) -> None:
        """Encode and decode values of a type.

        Args:
            type_: of the values.
            is_msgpack: MessagePack instead of JSON.
        """
        import msgspec

        form: Final = msgspec.msgpack if is_msgpack else msgspec.json
        self._encode = form.Encoder().encode
        self._decode = form.Decoder(type_).decode

    def encode(self, value: T) -> bytes:
        """Raises TypeError: msgspec can't encode such a type."""
        body: bytes = self._encode(value)
        return body

    def decode(self, body: bytes) -> T:
        """Raises msgspec.DecodeError, of which msgspec.ValidationError is a kind."""
        value: T = self._decode(body)
        return value


class PydanticCodec(Generic[T]):
    """Any type that pydantic validates, as JSON. pydantic 2 has to be installed."""

    def __init__(self, type_: type[T]) -> None:
        """Args:
            type_: of the values: a model, or whatever pydantic.TypeAdapter takes.

        Raises:
            ImportError: pydantic is not installed.
        """
        from pydantic import TypeAdapter

        self._adapter = TypeAdapter(type_)

    def encode(self, value: T) -> bytes:
        """Raises pydantic_core.PydanticSerializationError."""
        return self._adapter.dump_json(value)

    def decode(self, body: bytes) -> T:
        """Raises pydantic.ValidationError."""
        return self._adapter.validate_json(body)
